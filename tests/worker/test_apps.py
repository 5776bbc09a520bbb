"""Two apps in one process that share classes of tasks: one has limits, the other has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker as worker_here
from celery.result import AsyncResult
from celery.worker.request import Request

from celery_throttle import Throttle
from tests.apps import shared
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

SECONDS = 20


@pytest.fixture
def apps(redis_url: str) -> Iterator[tuple[Celery, Celery]]:
    """As in a test session: the app of the product, and one for a test."""
    product, other = (
        Celery(name, broker=redis_url, backend=redis_url, set_as_current=False)
        for name in ("product", "other")
    )
    product.conf.task_default_queue = "product"
    Throttle(product, {"api": "100/s", "slow": "4/s"})
    yield product, other
    for app in (product, other):
        app.close()


def send(app: Celery, name: str, number: int = 7, queue: str | None = None) -> AsyncResult:
    result: AsyncResult = app.send_task(name, (number,), queue=queue)
    return result


def worker(app: Celery) -> Any:
    return worker_here(app, pool="solo", perform_ping_check=False, shutdown_timeout=SECONDS)


def test_a_class_that_an_app_without_limits_has_as_well(apps: tuple[Celery, Celery]) -> None:
    product, other = apps
    for app in apps:
        for task in (shared.Usual, shared.Ours, shared.Fails):
            app.register_task(task())
    with worker(product):
        assert send(product, "shared.usual").get(timeout=SECONDS) == 7
    for task in (shared.Usual, shared.Fails):
        assert task.Request == "celery.worker.request:Request"
    with worker(other):
        for name in ("shared.usual", "shared.ours"):
            assert send(other, name).get(timeout=SECONDS) == 7
        with pytest.raises(ValueError, match="7"):
            send(other, "shared.fails").get(timeout=SECONDS)


def test_one_task_that_both_apps_have(apps: tuple[Celery, Celery]) -> None:
    task = shared.Usual()
    for app in apps:
        app.register_task(task)
    for app in apps:
        with worker(app):
            assert send(app, task.name).get(timeout=SECONDS) == 7


@pytest.mark.parametrize("app", ["limited", "plain"])
def test_a_worker_of_either_app(redis_url: str, start_worker: StartWorker, app: str) -> None:
    start_worker(f"tests.apps.shared:{app}", redis_url)
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as sender:
        for name in ("shared.usual", "shared.ours", *(["shared.body"] if app == "limited" else [])):
            results = [send(sender, name, number, queue=app) for number in range(3)]
            assert [result.get(timeout=SECONDS) for result in results] == [0, 1, 2], name
        with pytest.raises(ValueError, match="5"):
            send(sender, "shared.fails", 5, queue=app).get(timeout=SECONDS)


def test_request_classes_are_left_as_they_are() -> None:
    assert Request.__module__ == "celery.worker.request"
