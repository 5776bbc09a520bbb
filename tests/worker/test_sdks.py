"""A task whose SDK must wait joins its line, and its request goes out once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_throttle import Limiter
from tests.clients.api import Answer, Api
from tests.clients.test_grpc import Api as GrpcApi
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


@pytest.fixture
def grpc_api() -> Iterator[GrpcApi]:
    api = GrpcApi()
    yield api
    api.close()


@pytest.mark.thorough
def test_tasks_wait_in_their_line_whichever_sdk_sends(
    redis_url: str, start_worker: StartWorker, api: Api, grpc_api: GrpcApi
) -> None:
    names = ["boto3", "urllib", "google", "rpc"]
    env = {"SDKS_URL": api.url, "SDKS_GRPC": grpc_api.address}
    worker = start_worker("tests.apps.sdks", redis_url, concurrency=2, env=env)
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as app:
        sent = [app.send_task(f"tests.apps.sdks.{name}") for name in names * 2]
        assert [result.get(timeout=60) for result in sent] == [0] * len(sent)
    assert (len(api.paths), grpc_api.calls) == (6, 2)
    assert "waits for limit 'api'" in worker.log()


@pytest.mark.thorough
def test_the_last_429_names_the_task_that_met_it(
    redis_url: str, start_worker: StartWorker, api: Api
) -> None:
    start_worker("tests.apps.sdks", redis_url, env={"SDKS_URL": api.url})
    api.answers = [Answer(), Answer(429, {"Retry-After": "1"})]
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as app:
        sent = []
        for _ in range(3):
            sent.append(app.send_task("tests.apps.sdks.urllib"))
            sent[-1].get(timeout=60)
    limiter = Limiter(redis_url)
    last = limiter["api"].status().last_api_refusal
    assert last is not None
    assert (last.key, last.task_id, last.task) == (None, sent[1].id, "tests.apps.sdks.urllib")
    assert [status for _, status in api.log].count(429) == 1
