"""Tasks that are refused at the gate while the result backend is down."""

from __future__ import annotations

import time

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

#: More than the messages that a worker prefetches.
TASKS = 20


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "end"), [("failed", "FAILURE"), ("dropped", "REVOKED")])
def test_they_come_again_until_their_result_is_stored(
    redis_url: str, start_worker: StartWorker, name: str, end: str
) -> None:
    """Meanwhile they hold no prefetch slot, so other tasks run."""
    client = redis.Redis.from_url(redis_url)
    limiter = Limiter(redis_url, {"never": "1/h"})
    limiter["never"].acquire()
    client.set("refused:down", 1)
    worker = start_worker("tests.apps.refused", redis_url)
    with Celery("refused", broker=redis_url, backend=redis_url, set_as_current=False) as sender:
        results = [sender.send_task(f"tests.apps.refused.{name}") for _ in range(TASKS)]
        wait_until(lambda: worker.log().count(f"{name}[") >= TASKS, "all tasks are received")
        sender.send_task("tests.apps.refused.plain", ("refused:plain",))
        wait_until(lambda: client.llen("refused:plain") == 1, "another task has run", 20)
        client.delete("refused:down")
        wait_until(lambda: {one.state for one in results} == {end}, "all results", 20)
    client.delete("refused:plain")
    client.close()


@pytest.mark.thorough
def test_a_task_that_has_expired_keeps_no_process(
    redis_url: str, start_worker: StartWorker
) -> None:
    """It has waited for one, which Celery does not count as free if the request raises an error."""
    client = redis.Redis.from_url(redis_url)
    worker = start_worker("tests.apps.refused", redis_url, concurrency=1)
    with Celery("refused", broker=redis_url, backend=redis_url, set_as_current=False) as sender:
        sender.send_task("tests.apps.refused.wait", ("refused:wait",))
        expired = sender.send_task("tests.apps.refused.limited", expires=1)
        wait_until(lambda: worker.log().count("limited[") == 1, "it is received")
        time.sleep(1)  # until it has expired
        client.set("refused:down", 1)
        client.rpush("refused:wait", 1)
        sender.send_task("tests.apps.refused.plain", ("refused:plain",))
        wait_until(lambda: client.llen("refused:plain") == 1, "another task has run", 20)
        client.delete("refused:down", "refused:plain")
        wait_until(lambda: str(expired.state) == "REVOKED", "its result", 20)
    client.close()
