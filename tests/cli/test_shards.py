"""The command ``shards``."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_throttle import Throttle
from tests.cli.conftest import Shell
from tests.servers.server import free_port

LIMITS = {"shards-near": "5/h", "shards-lost": "5/h", "shards-home": "5/h"}


def shell_of(url: str, shards: Any) -> Shell:
    app = Celery("shards", broker=url, set_as_current=False)
    Throttle(app, LIMITS, url=url, shards=shards, prefix="{shards}", timeout=5)
    return Shell(app, "celery")


@pytest.mark.parametrize("shards", [None, {}])
def test_an_app_without_the_setting_has_one_shard(redis_url: str, shards: Any) -> None:
    shell = shell_of(redis_url, shards)
    head, row, *_ = shell.run("shards").splitlines()
    assert head.split() == ["shard", "server", "slot", "limits", "waiting"]
    assert row.split() == ["home", redis_url, "-", "3", "0"]
    assert shell.json("shards")["epoch"] == 0


def test_each_shard_is_listed_also_if_it_cannot_be_reached(redis_url: str) -> None:
    lost = f"redis://localhost:{free_port()}"
    shell = shell_of(
        redis_url,
        {
            "near": {"limits": ["shards-near"], "by_key": 2},
            "lost": {"limits": ["shards-lost"], "url": lost},
        },
    )
    assert shell.app.throttle["shards-near", 1].try_acquire()
    found = shell.json("shards")
    by_name = {one["shard"]: one for one in found["shards"]}
    assert {name: one["limits"] for name, one in by_name.items()} == {
        "home": 1,
        "near/0": 1,
        "near/1": 1,
        "lost": None,
    }
    assert by_name["lost"]["server"] == lost
    assert found["epoch"] > 0
    assert "lost cannot be read: " in shell.run("shards")


def test_the_setting_is_that_of_an_app(redis_url: str) -> None:
    shell = Shell(shell_of(redis_url, None).app, "celery-throttle")
    assert "this needs the app, which has throttle_shards" in shell.run("shards", code=2)
