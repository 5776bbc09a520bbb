"""Fan-outs with workers, and with killed publishers."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_throttle import UnknownFanOutError
from tests.apps import bulk
from tests.programs import ROOT
from tests.servers.server import wait_until
from tests.tether import Tethered
from tests.workers import QUICK, StartWorker

pytestmark = pytest.mark.workers

SECONDS = 20
CALL = bulk.call
MESSAGES = "{throttle}:messages:redis/0/celery"


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """The app of these tests uses one server for all of them, as Celery reuses its connections."""
    bulk.app.conf.update(broker_url=redis_url, result_backend=redis_url)
    bulk.throttle.__dict__.pop("settings", None)
    bulk.throttle.__dict__.pop("store", None)
    with redis.Redis.from_url(redis_url) as client:
        yield client


def runs(client: Any) -> list[list[str]]:
    """Return for each run: the number of its task, its retries, and when it began."""
    return [row.decode().split() for row in client.lrange("bulk", 0, -1)]


@pytest.mark.parametrize("options", [QUICK, (*QUICK, "--without-heartbeat")], ids=["", "no events"])
def test_every_end_of_a_task_is_counted_once(
    options: Sequence[str], client: Any, redis_url: str, start_worker: StartWorker
) -> None:
    start_worker("tests.apps.bulk", redis_url, options=options)
    ways = ["", "fail", "retry", "ignore", "reject", "requeue"]
    signatures = [CALL.s(n, ways[n % 6]).set(task_id=str(n)) for n in range(60)]
    late = CALL.s(60).set(expires=0.01, task_id="60")
    handle = bulk.throttle.fan_out([*signatures, late], "ways")
    progress = handle.wait(timeout=SECONDS)
    assert (progress.sent, progress.waiting, progress.running) == (61, 0, 0)
    assert (progress.done, progress.failed, progress.revoked) == (30, 30, 1)
    begun = Counter(number for number, *_ in runs(client))
    assert begun == {str(n): 2 if ways[n % 6] == "retry" else 1 for n in range(60)}
    ended: dict[str, Any] = {result.id: result.state for result in handle.results(timeout=SECONDS)}
    assert ended["1"] == "FAILURE"
    assert ended["2"] == "SUCCESS"
    assert ended["60"] == "REVOKED"
    assert len(ended) == 61
    client.flushall()


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["cold shutdown", "time limit"])
def test_a_task_that_comes_again_has_not_ended(
    client: Any, redis_url: str, start_worker: StartWorker, how: str
) -> None:
    """It was interrupted, and its message has acks_late."""
    worker = start_worker("tests.apps.bulk", redis_url, concurrency=1)
    limit = 60 if how == "cold shutdown" else 2
    handle = bulk.throttle.fan_out([bulk.long.s(1, 30).set(time_limit=limit)], "long")
    wait_until(lambda: len(runs(client)) == 1, "it runs", SECONDS)
    if how == "cold shutdown":
        worker.quit()
        worker.wait()
        assert handle.progress().ended == 0
        start_worker("tests.apps.bulk", redis_url, concurrency=1)
    progress = handle.wait(timeout=SECONDS)
    assert (progress.done, progress.failed, len(runs(client))) == (1, 0, 2)
    client.flushall()


def test_a_message_that_no_worker_accepts_has_ended(
    client: Any, redis_url: str, start_worker: StartWorker
) -> None:
    start_worker("tests.apps.bulk", redis_url, concurrency=1)
    handle = bulk.throttle.fan_out([CALL.s(1).set(serializer="pickle")], "pickled")
    assert handle.wait(timeout=SECONDS).failed == 1
    client.flushall()


def test_a_paused_fan_out_lets_others_pass(
    client: Any, redis_url: str, start_worker: StartWorker
) -> None:
    start_worker("tests.apps.bulk", redis_url)
    first = bulk.throttle.fan_out((CALL.s(n) for n in range(200)), "first")
    wait_until(lambda: len(runs(client)) > 10, "it runs", SECONDS)
    first.pause()
    wait_until(lambda: not client.keys("{throttle}:claims:*"), "those claimed before ran", SECONDS)
    waiting = first.progress().waiting
    second = bulk.throttle.fan_out((CALL.s(1000 + n) for n in range(20)), "second")
    assert second.wait(timeout=SECONDS).done == 20
    assert first.progress().waiting == waiting
    assert CALL.delay(2000).get(timeout=SECONDS) == 2000
    first.resume()
    wait_until(lambda: first.progress().waiting < waiting, "it goes on", SECONDS)
    first.cancel()
    assert first.wait(timeout=SECONDS).cancelled
    client.flushall()


@pytest.mark.thorough
def test_more_processes_than_one_call_can_hand_tasks_to(
    client: Any, redis_url: str, start_worker: StartWorker
) -> None:
    """A script can reply some 8,000 values at once."""
    count = 8_500
    handle = bulk.throttle.fan_out((bulk.wide.s(number) for number in range(count)), "many")
    worker = start_worker("tests.apps.bulk", redis_url, pool="gevent", concurrency=count)
    progress = handle.wait(timeout=300)
    assert (progress.done, progress.waiting, progress.running) == (count, 0, 0)
    assert "ERROR" not in worker.log()
    client.flushall()


def test_a_task_that_is_sent_joins_those_that_wait(
    client: Any, redis_url: str, start_worker: StartWorker
) -> None:
    """It reaches the worker once, in order, and not through the broker."""
    client.flushall()
    bulk.throttle["api"].reset()
    bulk.throttle["api"].pause(60)
    bulk.throttle.fan_out([CALL.s(0)], "one")
    sent = [CALL.delay(number) for number in range(1, 21)]
    assert client.llen("celery") == 0
    bulk.plain.delay()
    CALL.apply_async((100,), countdown=0.1)
    assert client.llen("celery") == 2
    start_worker("tests.apps.bulk", redis_url, pool="solo")
    bulk.throttle["api"].reset()
    assert [result.get(timeout=SECONDS) for result in sent] == list(range(1, 21))
    order = [int(number) for number, *_ in runs(client) if 0 < int(number) < 100]
    assert order == list(range(1, 21))
    wait_until(lambda: len(runs(client)) == 22, "all have run", SECONDS)
    client.flushall()


def test_rabbitmq_is_passed_by(
    client: Any, redis_url: str, rabbitmq_url: str, start_worker: StartWorker
) -> None:
    """With RabbitMQ, high priorities are first."""
    env = {"THROTTLE_URL": redis_url}
    command = [sys.executable, "-m", "tests.apps.bulk", "--priorities"]
    publisher = Tethered(
        command,
        Path(os.devnull),
        {**env, "CELERY_BROKER_URL": rabbitmq_url, "PYTHONPATH": str(ROOT)},
    )
    assert publisher.process.wait(SECONDS) == 0
    start_worker("tests.apps.bulk", rabbitmq_url, env=env, pool="solo")
    wait_until(lambda: len(runs(client)) == 10, "all have run", SECONDS)
    assert [int(number) for number, *_ in runs(client)] == list(range(10))
    client.flushall()


def test_a_task_that_is_sent_first_passes_the_broker(client: Any) -> None:
    CALL.delay(1)
    assert client.llen("celery") == 1
    assert not client.keys("{throttle}:line:*")


def test_the_broker_has_what_the_server_of_the_limits_does_not_take(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_throttle import StoreUnavailableError  # noqa: PLC0415

    def lost(_: Any) -> Any:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(bulk.throttle.store, "run", lost)
    CALL.delay(1)
    assert client.llen("celery") == 1


def _wait_at_least(client: Any, count: int) -> bool:
    return bool(client.hlen(MESSAGES) >= count)


def test_a_publisher_that_is_killed_and_started_again(
    client: Any, redis_url: str, tmp_path: Path
) -> None:
    """Every task is in its line once."""
    count = 6_000
    command = [sys.executable, "-m", "tests.apps.bulk", "nightly", str(count)]
    env = {"CELERY_BROKER_URL": redis_url, "PYTHONPATH": str(ROOT)}
    for least in (500, 2_500, None):
        # However late it is killed, it has not sent all of them.
        last = [] if least is None else [str(count - 1_000)]
        publisher = Tethered([*command, *last], tmp_path / "log", env)
        if least is None:
            assert publisher.process.wait(SECONDS) == 0
            continue
        wait_until(partial(_wait_at_least, client, least), "half is sent", SECONDS)
        os.kill(publisher.process.pid, signal.SIGKILL)
        publisher.process.wait()
        assert client.hlen(MESSAGES) < count
        publisher.end()
    [line] = client.keys("{throttle}:line:*")
    assert (client.zcard(line), client.hlen(MESSAGES)) == (count, count)
    progress = bulk.throttle.fan_out_named("nightly").progress()
    assert (progress.sent, progress.waiting, progress.closed) == (count, count, True)
    client.flushall()
    with pytest.raises(UnknownFanOutError):
        bulk.throttle.fan_out_named("nightly")
