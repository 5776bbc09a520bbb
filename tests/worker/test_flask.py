"""Tasks of Flask apps keep their app context, and their limits."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_throttle import Limiter
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


@pytest.mark.parametrize("way", ["task_cls", "before", "after"])
def test_tasks_of_a_flask_app_have_their_context_and_their_limits(
    redis_url: str, start_worker: StartWorker, way: str
) -> None:
    limited = ["limited", "shared", "written"]
    if way != "after":  # there it would have no context in plain Celery
        limited.append("early")
    start_worker("tests.apps.flasked", redis_url, pool="solo", env={"FLASK_WAY": way})
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as app:
        names = [*limited, "not_limited"]
        sent = {name: app.send_task(name, queue="flasked") for name in names}
        ran = {name: result.get(timeout=60) for name, result in sent.items()}
    assert ran == dict.fromkeys(names, "shop")
    limiter = Limiter(redis_url, {"api": "1/h burst 100"})
    assert limiter["api"].peek().remaining == 100 - len(limited)
    limiter.store.close()
