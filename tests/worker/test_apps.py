"""Apps in one process that share classes of tasks: one has limits, the other has none."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from tests.programs import run_python
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

SECONDS = 20


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["class", "task"])
def test_as_in_a_test_session(redis_url: str, client: Any, which: str) -> None:
    """The worker of the app with limits runs first."""
    env = {"CELERY_BROKER_URL": redis_url}
    output = run_python("-m", "tests.apps.shared", which, env=env, seconds=100)
    product, other, classes = output.splitlines()
    assert ast.literal_eval(product) == ["7", "7", "ValueError(7)"]
    assert ast.literal_eval(other) == ["7", "7", "ValueError(7)"]
    assert classes == " ".join(["celery.worker.request:Request"] * 2)
    client.flushall()


def send(app: Celery, name: str, number: int, queue: str) -> AsyncResult:
    result: AsyncResult = app.send_task(name, (number,), queue=queue)
    return result


@pytest.mark.parametrize(
    ("app", "names"),
    [
        ("limited", ("shared.usual", "shared.ours", "shared.body")),
        ("plain", ("shared.usual", "shared.ours")),
    ],
)
def test_a_worker_of_either_app(
    redis_url: str, start_worker: StartWorker, app: str, names: tuple[str, ...]
) -> None:
    start_worker(f"tests.apps.shared:{app}", redis_url)
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as sender:
        for name in names:
            results = [send(sender, name, number, app) for number in range(3)]
            assert [result.get(timeout=SECONDS) for result in results] == [0, 1, 2], name
        with pytest.raises(ValueError, match="5"):
            send(sender, "shared.fails", 5, app).get(timeout=SECONDS)
