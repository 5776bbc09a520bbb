"""`fanouts` and `fanout`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Throttle
from tests.cli.conftest import ENTRIES, Shell, fill
from tests.servers.server import free_port


def names(shell: Shell) -> list[str]:
    return [one["name"] for one in shell.json("fanouts")["fanouts"]]


def test_fan_outs_are_listed_by_waiting_tasks(shell: Shell) -> None:
    assert shell.run("fanouts") == "No fan-outs.\n"
    fill(shell.app, 3, name="few: tasks/€")
    fill(shell.app, 0, name="none")
    fill(shell.app, 10, name="many")
    assert names(shell) == ["many", "few: tasks/€", "none"]
    _head, *rows = shell.run("fanouts").splitlines()
    assert re.split(r"  +", rows[0]) == ["many", "running", "7", "7", "0", "0", "0", "0"]
    assert rows[2].startswith("none          complete")


def test_many_fan_outs_and_those_whose_records_have_expired(app: Any) -> None:
    shell = Shell(app, "celery")
    for number in range(120):
        fill(app, 0, name=f"n{number}")
    assert len(names(shell)) == 120
    with redis.Redis.from_url(app.conf.broker_url) as client:
        keys = app.throttle.keys
        for number in range(100):
            client.delete(keys.fan_out(f"n{number}"))
        assert sorted(names(shell)) == sorted(f"n{number}" for number in range(100, 120))
        for number in range(20):
            fill(app, 0, name=f"more{number}")
        assert client.zcard(keys.fan_outs) <= 40  # each new one looks after ten others


def test_fan_outs_of_all_shards(redis_url: str) -> None:
    """A shard that cannot be reached is named, and hides no fan-out of the others."""
    lost = f"redis://localhost:{free_port()}"
    shards = {"near": {"limits": ["near"]}, "lost": {"limits": ["lost"], "url": lost}}
    app: Any = Celery("shards", broker=redis_url, set_as_current=False)
    throttle = Throttle(app, {"near": "1/h", "home": "1/h"}, shards=shards, prefix="{shards}")

    def run(number: int) -> None: ...

    for name, count in (("near", 2), ("home", 3)):
        task = app.task(run, name=name, throttle=name, shared=False, lazy=False)
        throttle.fan_out([task.s(number) for number in range(count)], f"of {name}")
    shell = Shell(app, "celery")
    found = shell.json("fanouts")
    assert [one["name"] for one in found["fanouts"]] == ["of home", "of near"]
    assert lost in shell.errors("fanouts")
    assert shell.json("fanout", "show", "of near")["waiting"] == 2
    assert "Paused fan-out of near" in shell.run("fanout", "pause", "of near")
    assert "2 tasks discarded" in shell.run("fanout", "cancel", "of near", "--yes")
    assert lost in shell.run("fanout", "show", "another", code=3)


def test_show_pause_resume_and_cancel(app: Any) -> None:
    shell = Shell(app, "celery")
    fill(app, 300, tenants=3)
    output = shell.run("fanout", "show", "nightly")
    assert output.startswith("fan-out nightly: running\n")
    assert re.search(r"waiting +300\n", output)
    assert "Paused fan-out nightly until it is resumed: 300 tasks wait." in shell.run(
        *("fanout", "pause", "nightly")
    )
    assert shell.json("fanout", "show", "nightly")["state"] == "paused"
    assert "Fan-out nightly is paused until it is resumed" in shell.run("why", "id3")
    shell.run("fanout", "resume", "nightly")
    assert shell.json("fanout", "show", "nightly")["paused"] is False
    assert "--yes" in shell.run("fanout", "cancel", "nightly", code=1)
    assert "300 tasks discarded" in shell.run("fanout", "cancel", "nightly", "--yes")
    assert app.AsyncResult("id3").state == "REVOKED"
    assert shell.json("fanouts")["fanouts"][0]["state"] == "cancelled"


def test_cancel_needs_the_app(app: Any) -> None:
    fill(app, 3)
    output = Shell(app, "celery-throttle").run("fanout", "cancel", "nightly", "--yes", code=2)
    assert output.startswith("Error: this needs the app, whose result backend stores")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("command", ["show", "pause", "resume"])
def test_an_unknown_fan_out(app: Any, entry: str, command: str) -> None:
    fill(app, 1)
    assert "no fan-out 'nobody'" in Shell(app, entry).run("fanout", command, "nobody", code=4)
