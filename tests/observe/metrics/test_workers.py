"""The metrics of real workers: they agree with the tasks that ran, unit by unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Throttle
from tests.observe.metrics.page import read_page
from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


@pytest.fixture
def app(redis_url: str) -> Iterator[Any]:
    from tests.apps import measured  # noqa: PLC0415  # its broker is that of the test

    app: Any = Celery("measured", broker=redis_url, set_as_current=False)
    app.conf.update(task_ignore_result=True, task_default_queue="measured")
    Throttle(app, dict(measured.throttle.limits), lease=30)
    yield app
    app.throttle.store.close()
    with redis.Redis.from_url(redis_url) as client:
        client.delete("runs")


def send(app: Any, name: str, *args: Any, **options: Any) -> str:
    found: str = app.send_task(f"tests.apps.measured.{name}", args, **options).id
    return found


def runs(redis_url: str) -> dict[str, int]:
    with redis.Redis.from_url(redis_url) as client:
        return {name.decode(): int(count) for name, count in client.hgetall("runs").items()}


def test_counters_agree_with_the_tasks_that_ran(
    app: Any, redis_url: str, start_worker: StartWorker
) -> None:
    # Units that a worker takes ahead at the gate may go unused, so all tasks wait in lines first.
    app.throttle.register()
    for name in ("api", "tenant", "pair"):
        app.throttle[name].pause(None)
    for number in range(30):
        send(app, "call")
        send(app, "remind", f"secret-{number % 3}")
        send(app, "hold", 0.01)
    for _ in range(2):
        start_worker("tests.apps.measured", redis_url)
    wait_until(lambda: sum(read_page(app.throttle).of("tasks_waiting").values()) == 90, "90 tasks")
    for name in ("api", "tenant", "pair"):
        app.throttle[name].resume()
    wait_until(lambda: sum(runs(redis_url).values()) == 90, "90 runs")
    ran = runs(redis_url)
    of_tenants = sum(count for name, count in ran.items() if name.startswith("tenant"))

    def is_settled() -> bool:
        found = read_page(app.throttle)
        return found.get("slots_held", limit="pair") == 0 and found.get("workers") == 2

    wait_until(is_settled, "both workers, and the release of all slots")
    page = read_page(app.throttle)
    units = {"api": ran["api"] + 2 * of_tenants, "tenant": 2 * of_tenants, "pair": ran["pair"]}
    for name, used in units.items():
        # The units of a claim that went back are spent, too; on a busy machine there may be some.
        requeued = app.throttle[name].status().totals.requeued
        granted = page.get("units_granted_total", limit=name)
        assert granted is not None
        assert used + requeued <= granted <= used + 2 * requeued, name
        released = page.get("tasks_released_total", limit=name)
        parked = page.get("tasks_parked_total", limit=name)
        assert parked == (60 if name == "api" else 30)
        assert released == parked + requeued, name
        assert page.get("wait_seconds_count", limit=name) == released
        assert page.get("tasks_waiting", limit=name) == 0
        assert page.get("leases_expired_total", limit=name) == 0
    assert not any(page.of("tasks_dropped_total").values())
    assert page.of("tasks_stranded") == {}
    assert "secret" not in page.text


@pytest.mark.thorough
def test_tasks_that_wait_and_are_revoked(
    app: Any, redis_url: str, start_worker: StartWorker
) -> None:
    app.throttle["api"].pause(None, by="ann")
    worker = start_worker("tests.apps.measured", redis_url)
    ids = [send(app, "call") for _ in range(20)]
    wait_until(
        lambda: read_page(app.throttle).get("tasks_waiting", limit="api") == 20, "20 waiting"
    )
    page = read_page(app.throttle)
    assert page.get("tasks_runnable", queue="measured") == 0
    assert page.get("pause_end_timestamp_seconds", limit="api", source="user") == float("inf")
    assert page.get("forecast_seconds", limit="api") is None
    worker.terminate()
    worker.wait()
    app.throttle["api"].resume()
    page = read_page(app.throttle)
    assert (page.get("workers"), page.get("tasks_runnable", queue="measured")) == (0, 5)
    assert page.get("tasks_stranded", queue="measured", reason="queue") == 20
    app.throttle["api"].pause(None, by="ann")
    worker = start_worker("tests.apps.measured", redis_url)
    # One that is ready may not listen to commands yet.
    wait_until(lambda: app.control.ping([worker.hostname], timeout=1), "it answers")
    app.control.revoke(ids[:4])
    wait_until(lambda: read_page(app.throttle).get("tasks_waiting", limit="api") == 16, "16 left")
    app.throttle["api"].resume()
    wait_until(lambda: runs(redis_url).get("api") == 16, "16 runs")
    page = read_page(app.throttle)
    # Those of a claim that went back are counted again; on a busy machine there may be some.
    requeued = app.throttle["api"].status().totals.requeued
    assert page.get("tasks_waiting", limit="api") == 0
    assert page.get("tasks_dropped_total", limit="api", reason="revoked") == 4
    assert page.get("tasks_released_total", limit="api") == 16 + requeued
    granted = page.get("units_granted_total", limit="api")
    assert granted is not None
    assert 16 + requeued <= granted <= 16 + 2 * requeued
