"""A task for each SDK, all under one limit. SDKS_URL is the address of the API."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import grpc
import urllib3
from celery import Celery, Task
from google import genai
from google.genai.types import HttpOptions
from google.protobuf.wrappers_pb2 import StringValue

from celery_throttle import Throttle, throttled
from celery_throttle.clients.grpc import ThrottledInterceptor
from tests.clients.aws import client_of

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")
URL = os.environ.get("SDKS_URL", "http://localhost")
GRPC = os.environ.get("SDKS_GRPC", "localhost:1")

app = Celery("sdks", broker=BROKER, backend=BROKER, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
throttle = Throttle(app, limits={"api": "2/s burst 1"})
limit = throttle["api"]


@app.task(bind=True)
def boto3(task: Task) -> int:
    api: Any = SimpleNamespace(url=URL)
    throttled(client_of("s3", api), limit).get_object(Bucket="b", Key="k")["Body"].read()
    return int(task.request.retries)


@app.task(bind=True)
def urllib(task: Task) -> int:
    throttled(urllib3.PoolManager(), limit).request("GET", URL)
    return int(task.request.retries)


@app.task(bind=True)
def google(task: Task) -> int:
    plain = genai.Client(api_key="x", http_options=HttpOptions(base_url=URL))
    throttled(plain, {"requests": limit}).models.generate_content(model="m", contents="hi")
    return int(task.request.retries)


@app.task(bind=True)
def rpc(task: Task) -> int:
    channel = grpc.intercept_channel(grpc.insecure_channel(GRPC), ThrottledInterceptor(limit))
    call = channel.unary_unary(
        "/api/unary",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    call(StringValue(value="1"))
    return int(task.request.retries)
