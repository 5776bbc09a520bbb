"""The spans that the instrumentor makes of signals, and how users switch it on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
from celery import Celery
from celery.worker.request import Request
from kombu.message import Message
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_throttle import task_released
from celery_throttle.errors import MissingExtraError
from celery_throttle.otel import ThrottleInstrumentor

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
WAIT: dict[str, Any] = {"wait": 2.5, "limit": "mail", "key": "42", "position": 3}


def remind() -> None: ...


class Spans:
    """A provider, and the spans that it got."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def take(self) -> list[ReadableSpan]:
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    yield Spans()
    ThrottleInstrumentor().uninstrument()


def release(headers: dict[str, Any]) -> None:
    """Announce a task with these headers as a worker does."""
    app: Any = Celery(set_as_current=False)
    task = app.task(remind, name="remind", shared=False)
    sent = app.amqp.as_task_v2("an id", task.name)
    message = Message(
        json.dumps(sent.body),
        headers={**sent.headers, **headers},
        properties=sent.properties,
        content_type="application/json",
        content_encoding="utf-8",
    )
    request = Request(message, app=app, task=task)
    answers: Any = task_released.send(task, request=request, **WAIT)
    own = [answer for receiver, answer in answers if "otel" in receiver.__module__]
    assert all(answer is None for answer in own)  # else it is an error


@pytest.mark.parametrize("keys", [False, True])
def test_a_span(spans: Spans, *, keys: bool) -> None:
    ThrottleInstrumentor().instrument(tracer_provider=spans.provider, keys=keys)
    release(SAMPLED)
    [span] = spans.take()
    assert span.name == "throttle wait"
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x} {span.parent.span_id:016x}" == f"{TRACE_ID} {PARENT_ID}"
    assert span.start_time is not None
    assert span.end_time == span.start_time + 2_500_000_000
    assert span.attributes == {
        "celery.task_name": "remind",
        "messaging.message.id": "an id",
        "celery_throttle.limit": "mail",
        "celery_throttle.wait": 2.5,
        "celery_throttle.position": 3,
        **({"celery_throttle.key": "42"} if keys else {}),
    }


@pytest.mark.parametrize(
    "headers",
    [{}, {"traceparent": "damaged"}, {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}],
    ids=["no trace", "damaged", "not sampled"],
)
def test_a_task_without_a_trace_has_no_span(spans: Spans, headers: dict[str, Any]) -> None:
    ThrottleInstrumentor().instrument(tracer_provider=spans.provider)
    release(headers)
    assert spans.take() == []


def test_instrument_and_uninstrument(spans: Spans) -> None:
    ThrottleInstrumentor().uninstrument()  # does nothing
    for _ in range(2):
        ThrottleInstrumentor().instrument(tracer_provider=spans.provider)
    release(SAMPLED)
    assert len(spans.take()) == 1
    ThrottleInstrumentor().uninstrument()
    release(SAMPLED)
    assert spans.take() == []


def test_opentelemetry_instrument_finds_it(spans: Spans) -> None:
    [entry] = entry_points(group="opentelemetry_instrumentor", name="celery_throttle")
    entry.load()().instrument(skip_dep_check=True, tracer_provider=spans.provider)  # as it does
    release(SAMPLED)
    assert len(spans.take()) == 1


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("celery_throttle.otel"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"celery-global-throttle\[otel\]"):
        import celery_throttle.otel  # noqa: F401, PLC0415  # fails here
