"""The command ``shards move``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_throttle import Throttle
from tests.cli.conftest import Shell
from tests.cli.test_docs import fields, inner

LIMITS = {"moved-mail": "6/m burst 5", "moved-slots": "2 at once", "moved-news": "5/h"}
SHARDS: dict[str, Any] = {
    "moved-a": {"limits": ["moved-mail", "moved-n*"]},
    "moved-b": {"limits": ["nothing"]},
}


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    app = Celery("moves", broker=redis_url, set_as_current=False)
    throttle = Throttle(app, LIMITS, url=redis_url, shards=SHARDS, prefix="{moves}", timeout=5)
    yield Shell(app, "celery")
    for part in throttle.app_parts:
        part.store.close()


def test_a_limit_moves_after_a_preview(shell: Shell) -> None:
    throttle = shell.app.throttle
    throttle["moved-mail"].acquire(2)
    text = shell.run("shards", "move", "moved-mail", "moved-b", code=1)
    assert "no terminal to ask; give --yes" in text
    words = ("shards", "--json", "move", "moved-mail", "moved-b")
    assert "give --json behind move" in shell.run(*words, code=2)
    assert throttle["moved-mail"].try_acquire()
    text = shell.run("shards", "move", "moved-mail", "moved-b", "--reason", "room", "--yes")
    assert text.splitlines()[0] == (
        "limit moved-mail, from shard moved-a to shard moved-b: 0 tasks wait; 2 units lost (each "
        "key loses its own), and no start for up to 10 s"
    )
    assert text.splitlines()[-2:] == [
        "Moved 1 limit to shard moved-b: moved-mail.",
        (
            "Now change the setting for 'moved-mail': let no pattern in throttle_shards['moved-a'] "
            "match it, and add it to throttle_shards['moved-b']['limits']."
        ),
    ]
    assert not throttle["moved-mail"].try_acquire()
    (change,) = throttle.changes(most=1)
    assert (change.action, change.old, change.new) == ("shard", "moved-a", "moved-b")
    assert change.author.reason == "room"
    assert shell.json("shards")["epoch"] > 1


def test_several_limits_move_back(shell: Shell) -> None:
    names = ["moved-mail", "moved-news", "moved-slots"]
    found = shell.json("shards", "move", *names, "moved-b", "--yes")
    assert {*found} == fields("`shards move`")
    assert {*found["moves"][0]} == inner("`shards move`", "moves")
    assert [one["source"] for one in found["moves"]] == ["home", "home", "home"]
    found = shell.json("shards", "move", *names, "moved-a", "--yes")
    assert found["settings"] == [
        "Now change the setting for 'moved-slots': add it to throttle_shards['moved-a']['limits']."
    ]
    found = shell.json("shards", "move", "moved-news", "home", "--yes")
    assert found["settings"] == [
        (
            "Now change the setting for 'moved-news': let no pattern in throttle_shards['moved-a'] "
            "match it."
        )
    ]


def test_errors_name_what_is_wrong(shell: Shell) -> None:
    assert "has no shard 'c'" in shell.run("shards", "move", "moved-mail", "c", "-y", code=2)
    text = shell.run("shards", "move", "moved", "moved-b", "-y", code=4)
    assert "limit 'moved' is not defined" in text
    shell = Shell(shell.app, "celery-throttle")
    assert "needs the app" in shell.run("shards", "move", "moved-mail", "moved-b", code=2)
