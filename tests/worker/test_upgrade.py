"""Tasks, claims, fan-outs and definitions that the version before has left on a server.

Times in the record are past, as after a stop of all workers: leases have run out, tasks are due.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_throttle import Decision, Limiter, QueueFullError
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.fan_outs import Progress
from celery_throttle.store.keys import Keys
from celery_throttle.testing import ManualClock
from tests.recorded.app import LIMITS, QUEUES, RUNS, make_app
from tests.servers.server import (
    Server,
    assert_nothing_left_behind,
    redis6_command,
    redis_command,
    valkey_command,
    wait_until,
)
from tests.stored import BEFORE_PACKAGES, restore_keys
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

COMMANDS = {"valkey": valkey_command, "redis": redis_command, "redis6": redis6_command}
RECORDED: Any = json.loads(BEFORE_PACKAGES.read_text())
YEAR_US = 366 * 86_400 * 1_000_000


@pytest.fixture(
    params=[
        "valkey",
        pytest.param("redis", marks=pytest.mark.thorough),
        pytest.param("redis6", marks=pytest.mark.thorough),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server with the recorded keys, of each kind that is installed."""
    command = COMMANDS[request.param]()
    if command is None:
        pytest.skip(f"there is no {request.param} here")
    server = Server(command, tmp_path)
    with server.client() as client:
        restore_keys(client, RECORDED["keys"])
    yield server.url
    server.stop()


class Replay:
    """The recorded server, and a worker of the present code."""

    def __init__(self, url: str, start_worker: StartWorker) -> None:
        self.url = url
        self._start_worker = start_worker
        self.client: Any = redis.Redis.from_url(url)
        self.app = make_app(url)
        self.throttle = self.app.throttle
        self._expected: dict[str, Any] = {}

    def close(self) -> None:
        self.throttle.store.close()
        self.app.close()
        self.client.close()

    def worker(self) -> Worker:
        """Starts a worker with one process, so that tasks run in the order of their claims."""
        return self._start_worker("tests.recorded.app", self.url, concurrency=1, queues=QUEUES)

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.client.lrange(RUNS, 0, -1)]

    def until_ran(self, *stages: str) -> None:
        """Waits for the tasks of these stages; they, and those of the stages before, have run."""
        for stage in stages:
            self._expected |= RECORDED["runs"][stage]
        wait_until(lambda: set(self._expected) <= self._ids(), f"runs of the stage {stages}")
        assert self._ids() == set(self._expected)

    def _ids(self) -> set[str]:
        return {run["id"] for run in self.runs()}

    def left(self) -> dict[str, int]:
        """The number of tasks that wait, are claimed, are quarantined, or are the broker's."""
        names = {
            *self.client.keys("*:messages:*"),
            *self.client.keys("*:claims:*"),
            *(b"{throttle}:aside", b"unacked"),
        }
        found = {name.decode(): self.client.hlen(name) for name in names}
        found |= {queue: self.client.llen(queue) for queue in QUEUES}
        return {name: count for name, count in found.items() if count}


@pytest.fixture
def replay(url: str, start_worker: StartWorker) -> Iterator[Replay]:
    replay = Replay(url, start_worker)
    yield replay
    replay.close()


def known_kinds() -> set[str]:
    """The kinds of keys that the present version has: what follows the prefix in their names."""
    keys, ref = Keys("p"), LimitRef("limit", "key")
    examples: dict[str, Any] = {
        "ref": ref,
        "refs": [ref],
        "name": "name",
        "queue": "queue",
        "worker": "worker",
        "entries": keys.entries(ref),
        "task_id": "task",
        "field": "limit:key",
        "record": "p:fan-out:name",
        "waiting_list": "p:waiting:limit/queue",
        "which": "week",
        "what": "report",
    }
    found: set[str] = set()
    for attribute in (name for name in dir(Keys) if not name.startswith("_")):
        value = getattr(keys, attribute)
        if callable(value):
            value = value(*(examples[argument] for argument in inspect.signature(value).parameters))
        names = [value] if isinstance(value, str | int) else value
        found |= {str(name).split(":")[1] for name in names if str(name).startswith("p:")}
    return found


def test_definitions_usage_and_pauses_are_read(url: str) -> None:
    """At the time of the record, each limit decides as it did; also once a worker has started."""
    clock = ManualClock(RECORDED["at"])
    limiter = Limiter(url, LIMITS, clock=clock)
    for starts in (False, True):
        if starts:
            limiter.register()
        for name, recorded in RECORDED["peeks"]:
            ref = name if isinstance(name, str) else tuple(name)
            assert limiter.peek([ref]) == Decision(*recorded), name
    assert limiter["keyed", "c"].acquire().limited_by == "keyed"  # two keys are in use
    assert limiter["keyed", "a"].acquire()
    assert not limiter["keyed", "a"].acquire()
    for name in (["held"], ["inner"], ["stripe", "eu"], ["stripe", "us"], ["pass", "again"]):
        handle = limiter[name[0], name[1]] if name[1:] else limiter[name[0]]
        assert handle.peek().paused > 0
        assert handle.resume()
        assert handle.peek().allowed
    limiter.undefine("stripe")
    assert limiter["stripe"].peek().limit == 1  # that of the code


def test_used_units_stay_used(url: str) -> None:
    """By the clock of the server, which is later than the record by any time."""
    with redis.Redis.from_url(url) as client:
        seconds, _ = client.time()
    years = 1 + (seconds * 1_000_000 - RECORDED["at"]) // YEAR_US
    limiter = Limiter(url, LIMITS)
    assert 7 <= limiter["gcra"].acquire_up_to(100).granted <= 7 + years
    assert not limiter["gcra"].acquire()
    assert 10 <= limiter["token"].acquire_up_to(100).granted <= 10 + years


def test_each_task_runs_once(replay: Replay) -> None:
    throttle = replay.throttle
    fan_outs = {name: throttle.fan_out_named(name) for name in RECORDED["fan_outs"]}
    for name, recorded in RECORDED["fan_outs"].items():
        assert fan_outs[name].progress() == Progress(**recorded)

    # Claims, quarantined tasks, those of the broker, and those in lines that nothing holds back.
    worker = replay.worker()
    replay.until_ran("open")
    wait_until(lambda: fan_outs["nightly"].progress().complete, "the fan-out is complete")
    for name in ("held", "inner", "few"):
        assert throttle[name].peek().paused == inf

    throttle["pass", "again"].resume()
    replay.until_ran("again")
    throttle["held"].resume()
    replay.until_ran("held")
    assert_order(replay)
    for task_id in RECORDED["expired"]:
        result = replay.app.AsyncResult(task_id)
        wait_until(lambda: result.state == "REVOKED", "expired tasks are discarded")  # noqa: B023  # called at once
    throttle["inner"].resume()
    replay.until_ran("inner")
    assert throttle["inner"].peek().remaining == 1

    with pytest.raises(QueueFullError):  # as many wait as may
        replay.app.tasks["few"].delay(0).get(timeout=30)
    throttle["few"].resume()
    replay.until_ran("few")

    assert fan_outs["paused"].progress() == Progress(**RECORDED["fan_outs"]["paused"])
    fan_outs["paused"].resume()
    replay.until_ran("paused")
    assert_fan_outs(replay)

    wait_until(lambda: not replay.left(), "nothing waits, is claimed or is the broker's")
    worker.terminate()
    worker.wait()
    assert not replay.left()
    expected = [run for tasks in RECORDED["runs"].values() for run in tasks.values()]
    assert sorted(replay.runs(), key=itemgetter("id")) == sorted(expected, key=itemgetter("id"))
    assert_nothing_left_behind(replay.client)
    kinds = {name.decode().split(":")[1] for name in replay.client.keys("{throttle}:*")}
    assert kinds <= known_kinds()


def assert_order(replay: Replay) -> None:
    """By priority, then age; and three turns for one, as weights say."""
    tasks = [run for run in RECORDED["runs"]["held"].values() if is_of_first_line(run)]
    tasks.sort(key=lambda run: (run["priority"], run["args"][0]))
    assert [run["id"] for run in replay.runs() if is_of_first_line(run)] == [
        run["id"] for run in tasks
    ]
    shares = [run["kwargs"]["who"] for run in replay.runs() if run["name"] == "share"]
    turns = [who for who in shares if who != "vip"]
    third = [place for place, who in enumerate(turns) if who == "silver"][2]
    assert turns[:third].count("gold") >= 5


def is_of_first_line(run: dict[str, Any]) -> bool:
    return bool(run["name"] == "work" and run["queue"] == QUEUES[0])


def assert_fan_outs(replay: Replay) -> None:
    """Their results, also those from before; and nothing of them is sent again."""
    nightly = replay.throttle.fan_out_named("nightly")
    results = {result.id: result for result in nightly.results(timeout=30)}
    failed = {f"night-{number}" for number in (3, 8)}
    assert {task for task, result in results.items() if result.state == "FAILURE"} == failed
    got = {task: result.get(timeout=30) for task, result in results.items() if task not in failed}
    assert got == {f"night-{n}": n for n in range(12) if n not in (3, 8)}
    progress = nightly.progress()
    assert (progress.sent, progress.done, progress.failed) == (12, 10, 2)

    finished = replay.throttle.fan_out_named("finished")
    assert sorted(result.get(timeout=30) for result in finished.results(timeout=30)) == [0, 1, 2, 3]
    quick = replay.app.tasks["quick"]
    for name, count in (("finished", 4), ("paused", 5)):
        again = [quick.s(number).set(task_id=f"{name}-{number}") for number in range(count)]
        handle = replay.throttle.fan_out(again, name)
        assert handle.progress().sent == count
        assert handle.wait(timeout=30).done == count

    cancelled = replay.throttle.fan_out_named("cancelled")
    assert [result.state for result in cancelled.results(timeout=30)] == ["REVOKED"] * 4
