"""Fan-outs with several shards: each is in the shard of its limits, and found by its name."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import (
    FanOutError,
    StoreUnavailableError,
    Throttle,
    UnknownFanOutError,
)
from celery_throttle.bulk import retry
from celery_throttle.bulk.fan_out import location, publisher
from celery_throttle.store.client import Store
from tests.bulk.conftest import SECONDS, ShardedApp
from tests.programs import ROOT
from tests.servers.cluster import Cluster
from tests.servers.server import valkey_command, wait_until
from tests.tether import Tethered

pytestmark = pytest.mark.workers

TASKS = 60


def signatures(sharded: ShardedApp, name: str, *key: str, count: int = TASKS) -> list[Any]:
    return [sharded.task(name).s(n, *key).set(task_id=f"{name}-{n}") for n in range(count)]


def has_record(part: Any, name: str) -> bool:
    with redis.Redis.from_url(part.store.url) as client:
        return bool(client.exists(part.keys.fan_out(name)))


def counts(progress: Any) -> tuple[int, int, int]:
    return progress.sent, progress.waiting, progress.done


@pytest.mark.parametrize(
    ("name", "key", "shard"),
    [("api", (), "home"), ("erp", (), "erp"), ("tenant", ("ada",), "tenants/")],
)
def test_a_fan_out_is_in_the_shard_of_its_limits(
    sharded: ShardedApp, name: str, key: tuple[str, ...], shard: str
) -> None:
    handle = sharded.throttle.fan_out(signatures(sharded, name, *key), "nightly")
    handle.pause()
    found = sharded.reload().throttle.fan_out_named("nightly")
    progress = found.progress()
    assert (counts(progress), progress.closed) == ((TASKS, TASKS, 0), True)
    assert found.forecast().waiting == TASKS
    parts = sharded.throttle.parts_by_name
    with_record = [each for each in parts if has_record(parts[each], "nightly")]
    assert [each.startswith(shard) for each in with_record] == [True]
    sharded.start_worker()
    found.resume()
    assert counts(found.wait(timeout=SECONDS)) == (TASKS, 0, TASKS)
    assert sorted(result.get() for result in found.results()) == list(range(TASKS))
    assert sharded.runs(name) == list(range(TASKS))


def test_a_fan_out_of_nothing_is_in_the_home_shard(sharded: ShardedApp) -> None:
    assert sharded.throttle.fan_out([], "empty").progress().complete
    assert sharded.throttle.fan_out_named("empty").progress().complete


def test_a_cancelled_fan_out(sharded: ShardedApp) -> None:
    sharded.throttle.fan_out(signatures(sharded, "erp"), "nightly")
    assert sharded.throttle.fan_out_named("nightly").cancel() == TASKS
    assert sharded.app.AsyncResult("erp-7").state == "REVOKED"
    changes = [change.action for change in sharded.throttle.changes()]
    assert changes[0] == "cancel"
    with pytest.raises(FanOutError, match="'nightly' was cancelled"):
        sharded.throttle.fan_out(signatures(sharded, "erp"), "nightly")


def test_the_tasks_before_one_of_another_shard_are_sent(sharded: ShardedApp) -> None:
    mixed = [*signatures(sharded, "erp", count=7), *signatures(sharded, "api", count=1)]
    error = "'nightly' is in shard 'erp', and the limits of this task are in shard 'home'; allowed"
    for _ in range(2):
        with pytest.raises(FanOutError, match=error):
            sharded.throttle.fan_out(mixed, "nightly")
    progress = sharded.throttle.fan_out_named("nightly").progress()
    assert (counts(progress), progress.closed) == ((7, 7, 0), False)


def test_keys_of_two_shards(sharded: ShardedApp) -> None:
    keys = [f"key{number}" for number in range(20)]  # of four shards
    tasks = (sharded.task("tenant").s(0, key) for key in keys)
    with pytest.raises(FanOutError, match=r"shard 'tenants/\d', .* in shard 'tenants/\d'"):
        sharded.throttle.fan_out(tasks)


def test_a_name_is_that_of_one_fan_out_in_all_shards(sharded: ShardedApp) -> None:
    """A repeated call would else send again what another shard has recorded."""
    sharded.throttle.fan_out(signatures(sharded, "erp", count=7), "nightly")
    with pytest.raises(FanOutError, match=r"'nightly' is in shard 'erp', .* in shard 'home'"):
        sharded.throttle.fan_out(signatures(sharded, "api"), "nightly")
    assert counts(sharded.throttle.fan_out_named("nightly").progress()) == (7, 7, 0)
    again = sharded.throttle.fan_out(signatures(sharded, "erp", count=9), "nightly")
    assert counts(again.progress()) == (9, 9, 0)


def test_the_servers_of_other_shards_may_be_lost(sharded: ShardedApp) -> None:
    sharded.start_worker()
    sharded.throttle.fan_out(signatures(sharded, "erp", count=7), "first").wait(timeout=SECONDS)
    sharded.home.stop()
    assert counts(sharded.throttle.fan_out_named("first").progress()) == (7, 0, 7)
    handle = sharded.throttle.fan_out(signatures(sharded, "erp"), "second")
    assert counts(handle.wait(timeout=SECONDS)) == (TASKS, 0, TASKS)
    with pytest.raises(StoreUnavailableError):
        sharded.throttle.fan_out_named("another")  # the home shard may have it
    sharded.home.start()


def test_a_limit_that_no_server_knows_needs_the_home_shard(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT_SECONDS", 0.0)
    sharded.home.stop()
    with pytest.raises(Exception, match="are not registered, and the home shard"):
        sharded.throttle.fan_out(signatures(sharded, "erp"))
    sharded.home.start()


def test_the_server_of_a_fan_out_that_is_lost_for_a_while(sharded: ShardedApp) -> None:
    """The call goes on, and each task is in its line once."""
    sent = threading.Event()
    go_on = threading.Event()

    def tasks() -> Any:
        for number, task in enumerate(signatures(sharded, "erp", count=1_000)):
            if number == 500:
                sent.set()
                go_on.wait()
            yield task

    thread = threading.Thread(target=lambda: sharded.throttle.fan_out(tasks(), "nightly"))
    thread.start()
    sent.wait()
    sharded.erp.signal(signal.SIGSTOP)
    go_on.set()
    with pytest.raises(StoreUnavailableError):
        sharded.reload().throttle.fan_out_named("nightly")
    sharded.erp.signal(signal.SIGCONT)
    thread.join()
    progress = sharded.throttle.fan_out_named("nightly").progress()
    assert (counts(progress), progress.closed) == ((1_000, 1_000, 0), True)
    assert sharded.throttle["erp"].status().waiting == 1_000


def test_an_unknown_name(sharded: ShardedApp) -> None:
    with pytest.raises(UnknownFanOutError, match="'nightly'"):
        sharded.throttle.fan_out_named("nightly")


def test_a_publisher_that_is_killed_and_started_again(sharded: ShardedApp, tmp_path: Path) -> None:
    count = 2_000
    command = [sys.executable, "-m", "tests.apps.sharded_bulk", "nightly", str(count)]
    env = {**sharded.env, "PYTHONPATH": str(ROOT)}

    def sent() -> int:
        try:
            return int(sharded.throttle.fan_out_named("nightly").progress().sent)
        except UnknownFanOutError:
            return 0

    def has_sent(least: int) -> bool:
        return sent() >= least

    for least in (400, 1_200, None):
        last = [] if least is None else [str(least + 100)]
        running = Tethered([*command, *last], tmp_path / "log", env)
        if least is None:
            assert running.process.wait(SECONDS) == 0
            continue
        wait_until(partial(has_sent, least), "a part is sent", SECONDS)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        running.end()
    handle = sharded.throttle.fan_out_named("nightly")
    assert (counts(handle.progress()), handle.progress().closed) == ((count, count, 0), True)
    assert sharded.throttle["erp"].status().waiting == count


def test_the_outcome_of_a_task_whose_limits_have_moved(sharded: ShardedApp) -> None:
    """It was drained. Then it waits in another shard than that which has its fan-out."""
    sharded.throttle["api"].pause(3600)
    handle = sharded.throttle.fan_out(signatures(sharded, "erp", count=2), "nightly")
    assert sharded.throttle["erp"].drain().removed == 2
    sharded.throttle.purge()
    headers = {"throttle_fan_out": "nightly", "throttle_fan_out_shard": "erp"}
    for number in range(2):
        sharded.task("api").apply_async((number,), task_id=f"erp-{number}", headers=headers)
    sharded.start_worker()
    api = sharded.throttle["api"]
    wait_until(lambda: api.status().waiting == 2, "both in their line", SECONDS)
    api.define("1/h burst 1 outage closed")
    api.resume()
    wait_until(lambda: handle.progress().done == 1, "the outcome of one", SECONDS)
    assert api.drop().removed == 1
    progress = handle.progress()
    assert (counts(progress), progress.revoked) == ((2, 0, 1), 1)


def test_two_processes_that_begin_one_name_in_two_shards(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins when this one has found that the name is new. It alone sends."""
    throttle, others = sharded.throttle, signatures(sharded, "erp", count=7)
    find = location.part_of_limits

    def begin_another(*args: Any) -> Any:
        monkeypatch.undo()
        throttle.fan_out(others, "nightly")
        return find(*args)

    monkeypatch.setattr(publisher, "part_of_limits", begin_another)
    with pytest.raises(FanOutError, match=r"'nightly' is in shard 'erp', .* in shard 'home'"):
        throttle.fan_out(signatures(sharded, "api"), "nightly")
    assert throttle["api"].status().waiting == 0
    assert counts(throttle.fan_out_named("nightly").progress()) == (7, 7, 0)
    assert counts(throttle.fan_out(others, "nightly").progress()) == (7, 7, 0)


class KilledError(BaseException):
    """The process has ended."""


def kill_at(patch: pytest.MonkeyPatch, at: int, *, is_done: bool) -> None:
    """Let no call of a server come through from the one with a number on.

    ``is_done``: whether the server gets that one.
    """
    numbers = itertools.count()

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            number = next(numbers)
            if number > at or (number == at and not is_done):
                raise KilledError
            reply = method(*args)
            if number == at:
                raise KilledError
            return reply

        return call

    for name in ("run", "begin", "finish"):
        patch.setattr(Store, name, wrap(getattr(Store, name)))


@pytest.mark.parametrize("is_done", [False, True])
def test_a_publisher_that_is_killed_at_each_of_its_calls(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """The same call completes the fan-out, and sends no task twice."""
    count, task = 250, sharded.task("erp")
    for at in itertools.count():
        name = f"killed at {at}"
        with monkeypatch.context() as patch, suppress(KilledError):
            kill_at(patch, at, is_done=is_done)
            sharded.throttle.fan_out([task.s(number) for number in range(count)], name)
            break
        handle = sharded.throttle.fan_out([task.s(number) for number in range(count)], name)
        progress = handle.progress()
        assert (counts(progress), progress.closed) == ((count, count, 0), True)
        assert sharded.throttle["erp"].status().waiting == count * (at + 1)
    assert at > 10  # it looks for the name in all shards, opens it, and sends two batches


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    cluster = Cluster(valkey_command(), directory)
    yield cluster
    cluster.stop()


def test_a_fan_out_for_each_key_on_a_cluster(redis_url: str, cluster: Cluster) -> None:
    app: Any = Celery("keys", broker=redis_url, set_as_current=False)
    shards = {"tenants": {"limits": ["tenant"], "by_key": 6}}
    throttle = Throttle(app, {"tenant": "1/h"}, url=cluster.url, shards=shards)

    @app.task(name="remind", throttle="tenant:{key}", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def remind(key: int, number: int) -> None: ...

    for key in range(20):
        throttle.fan_out((remind.s(key, number) for number in range(key)), f"of {key}")
    found = [throttle.fan_out_named(f"of {key}") for key in range(20)]
    assert [handle.progress().waiting for handle in found] == [*range(20)]
    assert throttle["tenant"].status().waiting == sum(range(20))
    assert len({handle._throttle.keys.prefix for handle in found}) == 7  # and the home shard
    for part in throttle.app_parts:
        part.store.close()
    app.close()
