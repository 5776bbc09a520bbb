"""Fan-outs with several shards: a part in each shard of the limits, and one handle for all."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import (
    ConfigurationError,
    CostError,
    FanOutError,
    StoreUnavailableError,
    Throttle,
    UnknownFanOutError,
)
from celery_throttle.bulk import retry
from celery_throttle.bulk.fan_out import publisher
from celery_throttle.bulk.fan_out.enlist import MAX_BATCH_TASKS
from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.bulk.fan_out.part_publisher import PartPublisher
from celery_throttle.bulk.fan_out.parts import FanOutParts
from celery_throttle.bulk.fan_out.publisher import Publisher
from celery_throttle.limiter.parts import on
from celery_throttle.operations.fan_outs import pause_fan_out
from celery_throttle.operations.shards import ShardIdentity, begin_move
from celery_throttle.store.client import Store
from tests.bulk.conftest import SECONDS, ShardedApp
from tests.programs import ROOT
from tests.servers.cluster import Cluster
from tests.servers.server import wait_until
from tests.tether import Tethered

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

TASKS = 60


def signatures(sharded: ShardedApp, name: str, *key: str, count: int = TASKS) -> list[Any]:
    return [sharded.task(name).s(n, *key).set(task_id=f"{name}-{n}") for n in range(count)]


def mixed(sharded: ShardedApp, count: int = TASKS) -> list[Any]:
    """Return tasks whose limits are in turn in all shards that the app has."""
    tasks = []
    for number in range(count):
        name = ("api", "erp", "tenant")[number % 3]
        key = [f"key{number % 20}"] if name == "tenant" else []
        tasks.append(sharded.task(name).s(number, *key))
    return tasks


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


def test_a_fan_out_over_all_shards(sharded: ShardedApp) -> None:
    handle = sharded.throttle.fan_out(mixed(sharded), "nightly")
    handle.pause(reason="night")
    found = sharded.reload().throttle.fan_out_named("nightly")
    progress = found.progress()
    assert (counts(progress), progress.closed) == ((TASKS, TASKS, 0), True)
    assert (progress.paused, progress.unreachable, progress.missing) == (math.inf, (), ())
    assert found.forecast().waiting == TASKS
    parts = sharded.throttle.parts_by_name
    assert [name for name in parts if has_record(parts[name], "nightly")] == [*parts]
    assert counts(sharded.throttle.fan_out(mixed(sharded), "nightly").progress())[0] == TASKS
    sharded.start_worker()
    found.resume()
    assert found.wait(timeout=SECONDS).done == TASKS
    assert sorted(result.get() for result in found.results()) == list(range(TASKS))
    runs = [*sharded.runs("api"), *sharded.runs("erp"), *sharded.runs("tenant")]
    assert sorted(runs) == list(range(TASKS))


def test_a_cancel_revokes_the_tasks_of_all_shards(sharded: ShardedApp) -> None:
    sharded.throttle.fan_out(mixed(sharded), "nightly")
    found = sharded.throttle.fan_out_named("nightly")
    seen: list[int] = []
    assert found.cancel(seen.append) == TASKS
    assert (seen, seen[-1]) == (sorted(seen), TASKS)
    progress = found.progress()
    assert (progress.revoked, progress.waiting, progress.complete) == (TASKS, 0, True)
    assert [result.state for result in found.results()] == ["REVOKED"] * TASKS
    with pytest.raises(FanOutError, match="'nightly' was cancelled"):
        sharded.throttle.fan_out(mixed(sharded), "nightly")


def during(sharded: ShardedApp, action: Callable[[], Any]) -> Iterator[Any]:
    """Yield tasks of one shard; then something happens before those of the others."""
    yield from (sharded.task("erp").s(number) for number in range(500))
    wait_until(lambda: sharded.throttle.fan_out_named("nightly").progress().sent, "the first ones")
    action()
    yield from mixed(sharded)


def test_a_part_that_is_added_to_a_paused_fan_out_is_paused(sharded: ShardedApp) -> None:
    throttle = sharded.throttle
    handle = throttle.fan_out(
        during(sharded, lambda: throttle.fan_out_named("nightly").pause()), "nightly"
    )
    assert handle.progress().paused == math.inf
    assert counts(handle.progress()) == (500 + TASKS, 500 + TASKS, 0)


def test_a_part_that_is_added_while_the_fan_out_is_resumed_does_not_stay_paused(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = sharded.throttle

    def resume_before(*args: Any) -> Any:
        throttle.fan_out_named("nightly").resume()
        return pause_fan_out(*args)

    monkeypatch.setattr(publisher, "pause_fan_out", resume_before)
    throttle.fan_out(during(sharded, lambda: throttle.fan_out_named("nightly").pause()), "nightly")
    parts = FanOutParts(throttle, "nightly").found
    assert {name: part.progress.paused for name, part in parts.items()} == dict.fromkeys(parts, 0)


def test_no_part_is_added_to_a_cancelled_fan_out(sharded: ShardedApp) -> None:
    throttle = sharded.throttle
    handle = throttle.fan_out(
        during(sharded, lambda: throttle.fan_out_named("nightly").cancel()), "nightly"
    )
    progress = handle.progress()
    assert (progress.cancelled, progress.waiting) == (True, 0)
    assert throttle["api"].status().waiting == 0


def test_a_name_is_that_of_one_fan_out_in_all_shards(sharded: ShardedApp) -> None:
    sharded.throttle.fan_out(signatures(sharded, "erp", count=7), "nightly")
    handle = sharded.throttle.fan_out(signatures(sharded, "api", count=5), "nightly")
    assert counts(handle.progress()) == (12, 12, 0)
    again = sharded.throttle.fan_out(signatures(sharded, "erp", count=9), "nightly")
    assert counts(again.progress()) == (14, 14, 0)
    assert counts(sharded.throttle.fan_out_named("nightly").progress()) == (14, 14, 0)


def test_two_processes_that_begin_one_name_in_two_shards(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins when this one has found that the name is new."""
    throttle, others = sharded.throttle, signatures(sharded, "erp", count=7)
    open_part = PartPublisher.open

    def begin_another(*args: Any) -> None:
        monkeypatch.undo()
        throttle.fan_out(others, "nightly")
        open_part(*args)

    monkeypatch.setattr(PartPublisher, "open", begin_another)
    handle = throttle.fan_out(signatures(sharded, "api", count=5), "nightly")
    assert counts(handle.progress()) == (12, 12, 0)
    parts = throttle.parts_by_name
    for shard in ("home", "erp"):
        with redis.Redis.from_url(parts[shard].store.url) as client:
            record = parts[shard].keys.fan_out("nightly")
            listed = client.hget(record, "shards").split()
        assert sorted(listed) == [b"erp", b"home"]


def test_a_part_that_cannot_be_reached_is_named(sharded: ShardedApp) -> None:
    handle = sharded.throttle.fan_out(mixed(sharded), "nightly")
    sharded.erp.signal(signal.SIGSTOP)
    for found in (handle, sharded.reload().throttle.fan_out_named("nightly")):
        progress = found.progress()
        assert (progress.unreachable, progress.sent) == (("erp",), TASKS * 2 // 3)
        assert (progress.complete, progress.closed) == (False, False)
    with pytest.raises(StoreUnavailableError):
        found.pause()
    assert found.progress().paused == math.inf  # all others
    sharded.erp.signal(signal.SIGCONT)
    wait_until(lambda: not found.progress().unreachable, "the server")
    assert found.progress().paused == 0
    found.pause()
    assert (found.progress().paused, found.progress().sent) == (math.inf, TASKS)


def test_a_part_that_has_expired_is_named_and_is_not_sent_again(sharded: ShardedApp) -> None:
    handle = sharded.throttle.fan_out(mixed(sharded), "nightly")
    with sharded.erp.client() as client:
        client.flushall()
    progress = handle.progress()
    assert (progress.missing, progress.sent) == (("erp",), TASKS * 2 // 3)
    with pytest.raises(FanOutError, match="'nightly' in shard 'erp' has expired, or is lost"):
        sharded.throttle.fan_out(mixed(sharded), "nightly")


def test_no_more_tasks_wait_in_all_shards_than_may(sharded: ShardedApp) -> None:
    most, throttle = 7, sharded.throttle
    publish = partial(throttle.fan_out, mixed(sharded), "nightly", max_waiting=most)
    thread = threading.Thread(target=publish)
    thread.start()

    def waiting() -> int:
        try:
            return int(throttle.fan_out_named("nightly").progress().waiting)
        except UnknownFanOutError:
            return 0

    wait_until(lambda: waiting() == most, "as many as may wait")
    sharded.start_worker()
    seen: list[int] = []
    handle = throttle.fan_out_named("nightly")
    progress = handle.wait(SECONDS, lambda progress: seen.append(progress.waiting))
    thread.join()
    assert max(seen) <= most
    assert (progress.done, progress.closed) == (TASKS, True)


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


def test_several_lost_servers_take_the_time_of_one(sharded: ShardedApp) -> None:
    """All shards are read at the same time."""

    def seconds() -> float:
        throttle = sharded.reload().throttle
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            throttle.fan_out_named("nightly")
        return time.monotonic() - began

    sharded.home.signal(signal.SIGSTOP)
    one = seconds()
    sharded.erp.signal(signal.SIGSTOP)
    assert seconds() < 1.5 * one
    for server in (sharded.home, sharded.erp):
        server.signal(signal.SIGCONT)


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

    throttle = sharded.throttle
    thread = threading.Thread(target=lambda: throttle.fan_out(tasks(), "nightly"))
    thread.start()
    sent.wait()
    sharded.erp.signal(signal.SIGSTOP)
    go_on.set()
    with pytest.raises(StoreUnavailableError):
        sharded.reload().throttle.fan_out_named("nightly")
    sharded.erp.signal(signal.SIGCONT)
    thread.join()
    progress = throttle.fan_out_named("nightly").progress()
    assert (counts(progress), progress.closed) == ((1_000, 1_000, 0), True)
    assert throttle["erp"].status().waiting == 1_000


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
        last = [] if least is None else [str(least + MAX_BATCH_TASKS)]
        running = Tethered([*command, *last], tmp_path / "log", env)
        if least is None:
            assert running.process.wait(SECONDS) == 0
            continue
        running.wait_until(partial(has_sent, least), SECONDS)
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


class KilledError(BaseException):
    """The process has ended."""


def kill_at(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let no call reach a server from the one with a number on."""
    numbers = itertools.count()

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(numbers) >= at:
                raise KilledError
            return method(*args, **options)

        return call

    for name in ("run", "begin", "finish"):
        patch.setattr(Store, name, wrap(getattr(Store, name)))


def test_a_publisher_that_is_killed_before_each_of_its_calls(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call completes the fan-out, and sends no task twice."""
    for at in itertools.count():
        name = f"killed at {at}"
        with monkeypatch.context() as patch, suppress(KilledError):
            kill_at(patch, at)
            sharded.throttle.fan_out(mixed(sharded), name)
            break
        progress = sharded.throttle.fan_out(mixed(sharded), name).progress()
        assert (counts(progress), progress.closed) == ((TASKS, TASKS, 0), True)
    assert at > 50  # for each part it asks all shards, and writes to all parts
    names = ("api", "erp", "tenant")
    waiting = sum(sharded.throttle[limit].status().waiting for limit in names)
    assert waiting == TASKS * (at + 1)


def test_a_fan_out_over_the_nodes_of_a_cluster(redis_url: str, cluster: Cluster) -> None:
    app: Any = Celery("keys", broker=redis_url, set_as_current=False)
    shards = {"tenants": {"limits": ["tenant"], "by_key": 6}}
    throttle = Throttle(app, {"tenant": "1/h"}, url=cluster.url, shards=shards)

    @app.task(name="remind", throttle="tenant:{key}", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def remind(key: int, number: int) -> None: ...

    tasks = [(key, number) for key in range(20) for number in range(key)]
    throttle.fan_out((remind.s(*pair) for pair in tasks), "nightly")
    found = throttle.fan_out_named("nightly")
    assert counts(found.progress()) == (len(tasks), len(tasks), 0)
    assert throttle["tenant"].status().waiting == len(tasks)
    assert found.cancel() == len(tasks)
    for part in throttle.app_parts:
        part.store.close()
    app.close()


def test_another_process_adds_a_part_while_this_one_waits_for_room(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what waits there, and goes on when there is room."""
    one, other = sharded.throttle, sharded.reload().throttle
    tasks = [*signatures(sharded, "api", count=3), *signatures(sharded, "tenant", "ada", count=3)]
    seen = threading.Event()
    on_hold = Publisher._on_hold

    def look(publisher: Publisher) -> None:
        on_hold(publisher)
        if "erp" in publisher._parts:
            seen.set()

    monkeypatch.setattr(Publisher, "_on_hold", look)
    thread = threading.Thread(target=partial(one.fan_out, tasks, "nightly", max_waiting=2))
    thread.start()

    def waiting() -> int:
        try:
            return int(other.fan_out_named("nightly").progress().waiting)
        except UnknownFanOutError:
            return 0

    wait_until(lambda: waiting() == 2, "as many as may wait")
    other.fan_out(signatures(sharded, "erp", count=1), "nightly")
    assert seen.wait(SECONDS)
    sharded.start_worker()
    thread.join(SECONDS)
    handle = other.fan_out_named("nightly")
    assert counts(handle.wait(timeout=SECONDS)) == (7, 0, 7)


def test_a_part_in_a_shard_that_this_process_lacks(sharded: ShardedApp) -> None:
    sharded.throttle.fan_out(mixed(sharded), "nightly")
    sharded.env["SHARDS"] = json.dumps({"tenants": {"limits": ["tenant"], "by_key": 4}})
    sharded.reload()
    with pytest.raises(StoreUnavailableError, match="'erp' is not in throttle_shards"):
        sharded.throttle.fan_out(signatures(sharded, "api"), "nightly")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_an_error_of_a_server_names_the_position_among_the_tasks_of_all_shards(
    sharded: ShardedApp,
) -> None:
    sharded.task("erp").throttle_cost = "{number}"
    tasks = [sharded.task("api").s(number) for number in range(6)]
    tasks.insert(4, sharded.task("erp").s(2000))  # above the burst
    with pytest.raises(CostError) as caught:
        sharded.throttle.fan_out(tasks, "nightly")
    (note,) = getattr(caught.value, "__notes__", [])
    assert note.startswith("of signature 4 of a fan-out: task_id")


def test_tasks_are_not_sent_again_after_their_limit_has_moved(sharded: ShardedApp) -> None:
    """The part in the shard that the limit has left knows them."""
    tasks = signatures(sharded, "api")
    sharded.throttle.fan_out(tasks[:40], "nightly")
    sharded.throttle.drain_all()
    sharded.throttle.move_to_shard("api", "erp")
    handle = sharded.reload().throttle.fan_out(tasks, "nightly")
    assert counts(handle.progress()) == (TASKS, TASKS - 40, 0)
    assert sharded.at_broker() == 40
    handle = sharded.throttle.fan_out(tasks, "nightly")
    assert counts(handle.progress()) == (TASKS, TASKS - 40, 0)


def test_a_limit_does_not_move_while_tasks_of_a_fan_out_wait_for_it(sharded: ShardedApp) -> None:
    """They would leave it, and its pause."""
    throttle = sharded.throttle
    throttle.fan_out(signatures(sharded, "api"), "nightly")
    with pytest.raises(ConfigurationError, match="60 tasks of a fan-out wait for limit 'api'"):
        throttle.move_to_shard("api", "erp")
    assert throttle["api"].try_acquire()
    throttle["api"].drain()
    throttle.move_to_shard("api", "erp")


def test_a_move_that_has_begun_goes_on_though_tasks_of_a_fan_out_wait(sharded: ShardedApp) -> None:
    """They were sent after its first step."""
    throttle = sharded.throttle
    handle = throttle.fan_out(signatures(sharded, "api"), "nightly")
    home = throttle.parts.home
    identity = ShardIdentity("erp", server=sharded.erp.url)
    throttle.run_plan(on(home, begin_move(home.keys, "api", identity)))
    throttle.move_to_shard("api", "erp")
    sharded.start_worker()
    assert counts(handle.wait(timeout=SECONDS)) == (TASKS, 0, TASKS)
    assert sorted(sharded.runs("api")) == list(range(TASKS))


@pytest.mark.parametrize("lost_at", [{1, 3}, set[int]()], ids=["its record", "its page"])
def test_each_result_comes_though_a_shard_is_lost_meanwhile(
    sharded: ShardedApp, monkeypatch: pytest.MonkeyPatch, lost_at: set[int]
) -> None:
    """Its server is lost between the progress and the results, or between two parts."""
    sharded.start_worker()
    handle = sharded.throttle.fan_out(mixed(sharded), "nightly")
    handle.wait(timeout=SECONDS)
    monkeypatch.setattr(retry, "RETRY_INTERVAL_SECONDS", 0.0)
    read, read_page = FanOutParts._read, FanOut._read_page
    reads, pages = itertools.count(), itertools.count()

    def read_or_fail(parts: Any, every: Any, shard: str) -> None:
        if shard == "erp" and next(reads) in lost_at:
            parts.unreachable[shard] = StoreUnavailableError("it is down")
        else:
            read(parts, every, shard)

    def read_page_or_fail(found: Any, *args: Any) -> Any:
        if not lost_at and next(pages) == 1:
            raise StoreUnavailableError("it is down")
        return read_page(found, *args)

    monkeypatch.setattr(FanOutParts, "_read", read_or_fail)
    monkeypatch.setattr(FanOut, "_read_page", read_page_or_fail)
    assert len({result.id for result in handle.results()}) == TASKS
