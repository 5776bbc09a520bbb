"""A task whose booked start passes while the worker is busy runs soon, whatever its limit."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


def test_its_unit_is_given_back(redis_url: str, pool: str, start_worker: StartWorker) -> None:
    """The limit gives one an hour, and no line is needed."""
    limit = Limiter(redis_url, {"hourly": "1/h"})["hourly"]
    start_worker("tests.apps.late_starts", redis_url, env={"LATE": "booking"}, pool=pool)
    with Celery(broker=redis_url, set_as_current=False) as sender:
        sender.send_task("tests.apps.late_starts.hourly", [1], queue="late_starts")
    client: Any = redis.Redis.from_url(redis_url)
    with client:
        wait_until(lambda: client.llen("starts"), "its start")
        client.delete("starts")
    totals = limit.status().totals
    assert (totals.granted, totals.refunded, totals.parked) == (2, 1, 0)
    assert limit.peek(0).remaining == 0
