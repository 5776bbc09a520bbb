"""A worker that is told to end while it has no connection to its broker."""

from __future__ import annotations

import pytest

from celery_throttle import Limiter
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = [pytest.mark.workers, pytest.mark.pools("prefork", "threads", "gevent")]


def test_it_leaves_the_other_workers(
    redis_url: str, own_server: Server, start_worker: StartWorker, pool: str
) -> None:
    """Celery does not stop the parts of the worker that it was about to start again."""
    env = {"THROTTLE_URL": redis_url}
    worker = start_worker("tests.apps.shop", own_server.url, pool=pool, env=env)
    limiter = Limiter(redis_url)
    assert limiter.status().workers == 1
    own_server.stop()
    wait_until(lambda: "Trying again in" in worker.log(), "the worker has lost its broker")
    worker.terminate()
    assert worker.wait() == 0, worker.log()
    assert limiter.status().workers == 0
