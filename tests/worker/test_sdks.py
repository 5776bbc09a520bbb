"""A task whose SDK must wait joins its line, and its request goes out once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from tests.clients.api import Api
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
