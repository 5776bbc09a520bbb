"""Workers of one queue that keep their limits in different places warn of each other."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle import Throttle
from tests.apps import apart
from tests.servers.server import wait_until
from tests.workers import QUICK, StartWorker, Worker

pytestmark = pytest.mark.workers


def assert_they_warn(broker: str, store: str, start_worker: StartWorker) -> None:
    """Two workers share limits, and name their server differently; a third has another prefix."""

    def start(url: str, **env: str) -> Worker:
        env |= {"THROTTLE_URL": url, "APART_NAME": "any"}
        return start_worker("tests.apps.apart", broker, env=env, concurrency=1)

    same = [start(store), start(store.replace("127.0.0.1", "localhost"))]
    unlimited = start_worker("tests.apps.unlimited", broker, concurrency=1)
    other = start(store, APART_LIMITS="{moved}")
    for worker, others in ((same[0], [other]), (same[1], [other]), (other, same)):
        wait_until(lambda: "Limits are split" in worker.log(), "it warns")  # noqa: B023  # called at once
        log = worker.log()
        warned_of = log.count("Limits are split")
        assert sum(f"worker {one.hostname} keeps them at" in log for one in others) == warned_of
        assert "prefix '{moved}'" in log
        assert "prefix '{throttle}'" in log
    assert not {"ERROR", "throttle"} & {*unlimited.log().replace("/", " ").split()}


def test_on_redis(redis_url: str, start_worker: StartWorker) -> None:
    assert_they_warn(redis_url, redis_url, start_worker)


@pytest.mark.rabbitmq
def test_on_rabbitmq(rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> None:
    assert_they_warn(rabbitmq_url, redis_url, start_worker)


@pytest.mark.thorough
def test_limits_move_as_the_page_says(
    redis_url: str, client: Any, start_worker: StartWorker
) -> None:
    """Each task runs once: on the old prefix until the pause, and then on the new one."""

    def start(name: str, prefix: str) -> Worker:
        env = {"THROTTLE_URL": redis_url, "APART_NAME": name, "APART_LIMITS": prefix}
        return start_worker("tests.apps.apart", redis_url, env=env, options=QUICK)

    def ran(name: str) -> list[int]:
        found: Any = client.lrange(f"ran-by:{name}", 0, -1)
        return [*map(int, found)]

    old_worker = start("old", "{old}")
    with apart.make_app(redis_url) as app:
        old = Throttle(app, {"api": "100/s"}, url=redis_url, prefix="{old}")
        old["api"].define("5/s")
        for number in range(300):
            app.send_task("call", (number,))
        wait_until(lambda: len(ran("old")) >= 5, "some ran")
        old.pause_all(None, reason="move")
        start("new", "{new}")
        app.send_task("call", (300,))  # either worker may receive it
        old_worker.terminate()
        old_worker.wait()

        def drained() -> bool:
            old.drain_all()
            left = old.count_waiting()
            return left.waiting == left.claimed == 0

        wait_until(drained, "nothing waits on the old prefix")
        wait_until(lambda: len(ran("old")) + len(ran("new")) >= 301, "all ran")
        assert sorted(ran("old") + ran("new")) == [*range(301)]
        assert len(ran("old")) < 300
        old.store.close()
