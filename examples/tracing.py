"""One trace from the span that sends a task through its wait to its run, with OpenTelemetry.

Start a collector for OTLP at http://localhost:4318 (or set OTEL_EXPORTER_OTLP_ENDPOINT), then:

    $ pip install "celery-global-throttle[otel]" opentelemetry-sdk \
        opentelemetry-exporter-otlp-proto-http opentelemetry-instrumentation-celery
    $ celery -A examples.tracing worker &
    $ python -m examples.tracing
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_process_init, worker_process_shutdown
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from celery_throttle import Throttle
from celery_throttle.otel import ThrottleInstrumentor

SERVER = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
RESULTS = os.environ.get("CELERY_RESULT_BACKEND", SERVER)

app = Celery("examples.tracing", broker=SERVER, backend=RESULTS)
throttle = Throttle(app, limits={"api": "5/s"}, url=os.environ.get("THROTTLE_URL", SERVER))


@app.task(throttle="api")
def call_api(number: int) -> int:
    return number


# begin of tracing
def make_provider() -> TracerProvider:
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@worker_init.connect
def trace_waits(**_: Any) -> None:
    """In the main process of a worker."""
    ThrottleInstrumentor().instrument(tracer_provider=make_provider())


@worker_process_init.connect
def trace_tasks(**_: Any) -> None:
    """In each process of the pool, and in processes that send tasks."""
    provider = make_provider()
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()

    def shut_down(**_: object) -> None:
        provider.shutdown()

    # A process of the pool ends without functions of atexit, so its last spans would be lost.
    worker_process_shutdown.connect(shut_down, weak=False)


# end of tracing


def main() -> None:
    trace_tasks()
    with trace.get_tracer(__name__).start_as_current_span("checkout"):
        results = [call_api.delay(number) for number in range(10)]
    for result in results:
        result.get(timeout=30)
    print("10 tasks in one trace")


if __name__ == "__main__":
    main()
