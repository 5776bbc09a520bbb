"""Real workers and a real producer send their spans to one collector: each task is one trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import chain
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.apps import traced
from tests.otel.collector import Collector, Span, collect
from tests.programs import run_python
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = [pytest.mark.workers, pytest.mark.thorough]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collect() as collector:
        yield collector


class Producer:
    """The app of the workers in this process, whose spans go to the collector as well."""

    def __init__(self, url: str, collector: Collector) -> None:
        self.app = traced.make_app(url)
        self.collector = collector
        self.provider = TracerProvider()
        exporter = OTLPSpanExporter(f"{collector.url}/v1/traces")
        self.provider.add_span_processor(SimpleSpanProcessor(exporter))

    @contextmanager
    def limit_paused(self, name: str, key: str | None = None) -> Iterator[None]:
        """While a limit is paused, so that tasks wait; after 0.2 s they go on."""
        limit = self.app.throttle[name, key] if key else self.app.throttle[name]
        limit.pause(3600)
        yield
        time.sleep(0.2)
        limit.resume()

    def wait_for(self, count: int, name: str, key: str | None = None) -> None:
        """Wait until as many tasks wait at a limit."""
        ref = (name, key) if key else name
        throttle = self.app.throttle
        wait_until(lambda: throttle[ref].list_waiting().waiting == count, f"{count} tasks wait")

    def trace(self, send: Callable[[], Any]) -> str:
        """Send tasks in a span "checkout"; return the id of its trace."""
        with self.provider.get_tracer("test").start_as_current_span("checkout") as span:
            send()
        return f"{span.get_span_context().trace_id:032x}"

    def tree(self, trace_id: str, spans: int) -> Any:
        """The trace, when it has as many spans."""
        wait_until(lambda: len(self.collector.of(trace_id)) >= spans, f"{spans} spans")
        return self.collector.tree(trace_id)

    def waits(self, trace_id: str) -> list[Span]:
        return [span for span in self.collector.of(trace_id) if span.name == "throttle wait"]


@pytest.fixture
def producer(redis_url: str, collector: Collector) -> Iterator[Producer]:
    producer = Producer(redis_url, collector)
    instrumentor: Any = CeleryInstrumentor
    instrumentor().instrument(tracer_provider=producer.provider)
    yield producer
    instrumentor().uninstrument()
    producer.app.throttle.store.close()
    producer.app.close()


@pytest.fixture
def start(redis_url: str, collector: Collector, start_worker: StartWorker) -> Callable[..., Worker]:
    """Starts workers whose spans go to the collector."""

    def start(**env: str) -> Worker:
        return start_worker("tests.apps.traced", redis_url, env={**collector.env(), **env})

    return start


def waited(name: str, *after: Any) -> Any:
    """The tree of a task that waited in a line: its wait and its run have one parent."""
    run = (f"run/{name}", list(after))
    return (f"apply_async/{name}", [run, ("throttle wait", [])])


def test_a_task_that_waits(producer: Producer, start: Callable[..., Worker]) -> None:
    start()
    with producer.limit_paused("api"):
        began = time.time()
        trace_id = producer.trace(producer.app.tasks["call"].delay)
        producer.wait_for(1, "api")
    assert producer.tree(trace_id, 4) == [("checkout", [waited("call")])]
    [span] = producer.waits(trace_id)
    seconds = span.attributes.pop("celery_throttle.wait")
    task_id = span.attributes.pop("messaging.message.id")
    assert span.attributes == {
        "celery_throttle.limit": "api",
        "celery_throttle.position": 1,
        "celery.task_name": "call",
    }
    assert task_id
    assert 0.2 <= seconds == pytest.approx(span.seconds, abs=1e-3)
    assert began <= span.start / 1e9
    run = next(span for span in producer.collector.of(trace_id) if span.name == "run/call")
    assert span.end <= run.start


def test_tasks_of_a_fan_out_have_one_producer(
    producer: Producer, start: Callable[..., Worker]
) -> None:
    start()
    tasks = producer.app.tasks
    signatures = [*(tasks["call"].s(n) for n in range(4)), tasks["mail"].s("ada")]
    with producer.limit_paused("api"), producer.limit_paused("tenant", "ada"):
        trace_id = producer.trace(lambda: producer.app.throttle.fan_out(signatures, "nightly"))
    runs: list[Any] = [*[("run/call", [])] * 4, ("run/mail", [])]
    waits: list[Any] = [("throttle wait", [])] * 5
    expected = [("checkout", [("apply_async/call", runs + waits)])]
    assert producer.tree(trace_id, 12) == expected
    spans = producer.waits(trace_id)
    limits = sorted(span.attributes["celery_throttle.limit"] for span in spans)
    assert limits == ["api"] * 4 + ["tenant"]
    positions = sorted(span.attributes["celery_throttle.position"] for span in spans)
    assert positions == [1, 1, 2, 3, 4]


def test_a_task_that_retries(producer: Producer, start: Callable[..., Worker]) -> None:
    """The first run sends the retry, and pauses its limit before."""
    start()
    with producer.limit_paused("api"):
        trace_id = producer.trace(producer.app.tasks["retry"].delay)
        producer.wait_for(1, "api")
        producer.app.throttle["api"].resume()
        wait_until(lambda: len(producer.waits(trace_id)) == 1, "the first run")
        producer.wait_for(1, "api")
    assert producer.tree(trace_id, 7) == [("checkout", [waited("retry", waited("retry"))])]


def test_a_chain(producer: Producer, start: Callable[..., Worker]) -> None:
    start()
    tasks = producer.app.tasks
    with producer.limit_paused("api"), producer.limit_paused("tenant", "ada"):
        trace_id = producer.trace(chain(tasks["call"].si(), tasks["mail"].si("ada")).delay)
        producer.wait_for(1, "api")
        producer.app.throttle["api"].resume()
        producer.wait_for(1, "tenant", "ada")
    assert producer.tree(trace_id, 7) == [("checkout", [waited("call", waited("mail"))])]
    assert all("celery_throttle.key" not in span.attributes for span in producer.waits(trace_id))


def test_a_task_that_meets_its_limit_in_its_body(
    producer: Producer, start: Callable[..., Worker]
) -> None:
    """It runs twice, and waits between."""
    start()
    with producer.limit_paused("body"):
        trace_id = producer.trace(producer.app.tasks["call in body"].delay)
        producer.wait_for(1, "body")
    name = "call in body"
    first_run: Any = (f"run/{name}", [])
    sent, spans = waited(name)
    assert producer.tree(trace_id, 5) == [("checkout", [(sent, [first_run, *spans])])]
    runs = [span for span in producer.collector.of(trace_id) if span.name == f"run/{name}"]
    [span] = producer.waits(trace_id)
    assert runs[0].end <= span.start + 5e6  # a worker's clock, and that of the server
    assert span.end <= runs[1].start
    assert span.attributes["celery_throttle.limit"] == "body"


@pytest.mark.parametrize("task", ["call", pytest.param("call in body", marks=pytest.mark.thorough)])
def test_a_wait_at_the_broker(producer: Producer, start: Callable[..., Worker], task: str) -> None:
    """The message goes back to its queue meanwhile."""
    start(TRACED_WAITING="broker")
    limit = "api" if task == "call" else "body"
    producer.app.throttle[limit].pause(6)  # far longer than until a slow worker has the message
    trace_id = producer.trace(producer.app.tasks[task].delay)
    name, spans = waited(task)
    first_run: Any = [(f"run/{task}", [])] if task == "call in body" else []
    assert producer.tree(trace_id, 4 + len(first_run)) == [
        ("checkout", [(name, first_run + spans)])
    ]
    [span] = producer.waits(trace_id)
    assert span.attributes["celery_throttle.limit"] == limit
    assert span.attributes["celery_throttle.position"] == 0
    assert 1 < span.seconds == pytest.approx(span.attributes["celery_throttle.wait"], abs=1e-3)


def test_a_producer_without_traces(
    redis_url: str, collector: Collector, start: Callable[..., Worker]
) -> None:
    """Its tasks have no trace that a wait could be part of."""
    start()
    app = traced.make_app(redis_url)
    limit = app.throttle["api"]
    limit.pause(3600)
    app.tasks["call"].delay()
    wait_until(lambda: app.throttle["api"].list_waiting().waiting == 1, "it waits")
    limit.resume()
    wait_until(lambda: len(collector.spans) == 1, "the run")
    assert collector.spans[0].name == "run/call"
    app.throttle.store.close()
    app.close()


@pytest.mark.thorough
def test_the_example(redis_url: str, collector: Collector, start_worker: StartWorker) -> None:
    """Also shows that processes of a pool send their spans before they end."""
    env = {"CELERY_RESULT_BACKEND": redis_url, "THROTTLE_URL": redis_url, **collector.env()}
    env["OTEL_BSP_SCHEDULE_DELAY"] = "3600000"  # nothing is sent but at the end
    worker = start_worker("examples.tracing", redis_url, env=env)
    run_python("-m", "examples.tracing", env={**env, "CELERY_BROKER_URL": redis_url})
    worker.terminate()
    worker.wait(120)
    [root] = [span for span in collector.spans if not span.parent_id]
    assert root.name == "checkout"
    [(_, sent)] = collector.tree(root.trace_id)
    name, spans = waited("examples.tracing.call_api")
    assert sent.count((name, spans)) >= 1
    assert sent.count((name, spans)) + sent.count((name, spans[:1])) == 10  # some start at once
