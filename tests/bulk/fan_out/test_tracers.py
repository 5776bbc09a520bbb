"""Fan-outs of a process with the Celery integrations of OpenTelemetry, Sentry, or both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import sentry_sdk
from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_throttle.bulk.fan_out.entries import EntryBuilder
from celery_throttle.bulk.fan_out.tracers import receivers_of_users, suppress_tracers
from celery_throttle.tasks.messages import packing

TRACE_HEADERS = {
    "opentelemetry": {"traceparent"},
    "sentry": {"baggage", "headers", "sentry-task-enqueued-time", "sentry-trace"},
}


class Envelopes(Transport):
    """Keeps the spans of the transactions that Sentry would send."""

    def __init__(self, spans: list[dict[str, Any]]) -> None:
        super().__init__()
        self._spans = spans

    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            if item.type == "transaction":
                self._spans += item.payload.json["spans"]


@dataclass(slots=True)
class Tracers:
    """The tracers of a test, and the spans that they recorded."""

    names: set[str]
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    sentry_spans: list[dict[str, Any]] = field(default_factory=list)

    def spans(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def header_names(self) -> set[str]:
        return set().union(*(TRACE_HEADERS[name] for name in self.names))

    def transaction(self) -> Any:
        """A transaction of Sentry, in which it propagates a trace."""
        return sentry_sdk.start_transaction(name="t") if "sentry" in self.names else nullcontext()


def instrumentor() -> Any:
    """Return OpenTelemetry's, of which a process has one; it has no types."""
    return CeleryInstrumentor()  # type: ignore[no-untyped-call]


@pytest.fixture(params=["opentelemetry", "sentry", "opentelemetry and sentry"])
def tracers(request: pytest.FixtureRequest) -> Iterator[Tracers]:
    tracers = Tracers(set(request.param.split(" and ")))
    if "opentelemetry" in tracers.names:
        # This sampler records each span, whatever its parent is.
        provider = TracerProvider(sampler=ALWAYS_ON)
        provider.add_span_processor(SimpleSpanProcessor(tracers.exporter))
        instrumentor().instrument(tracer_provider=provider)
    if "sentry" in tracers.names:
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1",
            transport=Envelopes(tracers.sentry_spans),
            traces_sample_rate=1.0,
            auto_enabling_integrations=False,
            integrations=[CeleryIntegration()],
        )
    yield tracers
    if "opentelemetry" in tracers.names:
        instrumentor().uninstrument()
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)


def headers_of(builder: EntryBuilder, signatures: list[Any]) -> list[dict[str, Any]]:
    """The headers of the messages that a builder makes."""
    entries = [builder.build(number, signature) for number, signature in enumerate(signatures)]
    return [packing.headers(entry.packed) for entry in entries]


def trace_of(headers: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The trace headers of a message; of those nested in another, those that are nested."""
    nested = {k: v for k, v in (headers.get("headers") or {}).items() if k in names}
    return {**{name: headers[name] for name in names & set(headers)}, "headers": nested}


def test_all_messages_have_the_trace_of_one_span(app: Any, tracers: Tracers) -> None:
    builder, one, tenant = (
        EntryBuilder(app.throttle, "nightly"),
        app.tasks["one"],
        app.tasks["tenant"],
    )
    signatures = [one.s(n).set(task_id=f"{n}") for n in range(4)]
    signatures += [tenant.s("ada").set(headers={"mine": n}) for n in (1, 1, 1, 2)]
    signatures.append(one.s(1).set(expires=60))
    with tracers.transaction():
        found = headers_of(builder, signatures)
    names = tracers.header_names()
    for headers in found:
        assert names <= set(headers)
        assert trace_of(headers, names) == trace_of(found[0], names)
    assert [headers.get("mine") for headers in found] == [None] * 4 + [1, 1, 1, 2] + [None]

    if "opentelemetry" in tracers.names:
        [span] = tracers.exporter.get_finished_spans()
        assert span.name == "apply_async/one"
        assert f"{span.context.span_id:016x}" in found[0]["traceparent"]
    if "sentry" in tracers.names:
        # As for one delay(): Sentry makes a span in apply_async(), and one in send_task().
        assert [span["op"] for span in tracers.sentry_spans] == ["queue.submit.celery"] * 2
        assert tracers.sentry_spans[-1]["span_id"] in found[0]["sentry-trace"]
        for headers in found:  # a task sees the headers in which Sentry nests its own
            own = {"throttle_fan_out": "nightly", "ignore_result": False}
            own |= {"mine": headers["mine"]} if "mine" in headers else {}
            assert own.items() <= headers["headers"].items()


def test_templates_make_the_messages(app: Any, tracers: Tracers) -> None:
    builder = EntryBuilder(app.throttle, "nightly")
    for in_transaction in (False, True):
        with tracers.transaction() if in_transaction else nullcontext():
            for number in range(3):
                signature = app.tasks["one"].s(number, text="ä").set(task_id=f"{number}")
                kind, entry = builder._kind_of(signature), builder.build(number, signature)
            made = builder._capture(kind, (2,), {"text": "ä"}, task_id="2")
        assert kind.template is not None
        assert entry.packed == packing.pack(made)


def test_it_is_the_message_that_celery_sends_with_these_tracers(app: Any, tracers: Tracers) -> None:
    builder, one = EntryBuilder(app.throttle, "nightly"), app.tasks["one"]
    with tracers.transaction():
        signature = one.s(1).set(task_id="an id", headers={"mine": 1})
        message = packing.headers(builder.build(0, signature).packed)
        alone = builder._make(
            builder._kind_of(signature),
            (1,),
            {},
            task_id="an id",
            headers={"mine": 1, "throttle_fan_out": "nightly", "ignore_result": False},
        )
    assert set(message) == set(alone.headers)
    for name in set(message) - tracers.header_names():
        assert message[name] == alone.headers[name], name
    assert set(message.get("headers") or ()) == set(alone.headers.get("headers") or ())


def test_code_of_users_makes_each_message_with_a_span(app: Any, tracers: Tracers) -> None:
    seen: list[str] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["id"])

    signals.before_task_publish.connect(before)
    try:
        signatures = [app.tasks["one"].s(n).set(task_id=f"{n}") for n in range(3)]
        with tracers.transaction():
            found = headers_of(EntryBuilder(app.throttle, "nightly"), signatures)
    finally:
        signals.before_task_publish.disconnect(before)
    assert seen == ["0", "1", "2"]
    if "opentelemetry" in tracers.names:
        assert tracers.spans() == ["apply_async/one"] * 3
        assert len({headers["traceparent"] for headers in found}) == 3
    if "sentry" in tracers.names:
        assert len({headers["sentry-trace"] for headers in found}) == 3


def test_a_trace_that_a_user_gives_stays(app: Any, tracers: Tracers) -> None:
    builder, one = EntryBuilder(app.throttle, "nightly"), app.tasks["one"]
    signatures = [one.s(n).set(headers={"baggage": f"number={n}"}) for n in range(3)]
    with tracers.transaction():
        found = headers_of(builder, signatures)
    for number, headers in enumerate(found):
        assert f"number={number}" in headers["baggage"]


def test_other_threads_are_traced_meanwhile(app: Any, tracers: Tracers) -> None:
    if "opentelemetry" not in tracers.names:
        pytest.skip("only OpenTelemetry uses signals")
    one = app.tasks["one"]
    with suppress_tracers():
        one.delay(1)
        assert tracers.spans() == []
        thread = threading.Thread(target=one.delay, args=(2,))
        thread.start()
        thread.join()
        assert tracers.spans() == ["apply_async/one"]
    one.delay(3)
    assert tracers.spans() == ["apply_async/one"] * 2
    assert not receivers_of_users(signals.before_task_publish)

    instrumentor().uninstrument()
    assert not signals.before_task_publish.receivers
    one.delay(4)
    assert tracers.spans() == ["apply_async/one"] * 2


@pytest.mark.parametrize("conf", [{}, {"throttle_publish": "line"}], ids=["broker", "line"])
def test_single_tasks_have_spans_of_their_own(make_app: Any, conf: Any, tracers: Tracers) -> None:
    app = make_app(**conf)
    with tracers.transaction():
        headers_of(EntryBuilder(app.throttle, "nightly"), [app.tasks["one"].s(1)])
        tracers.exporter.clear()
        for number in range(2):
            app.tasks["one"].delay(number)
    if "opentelemetry" in tracers.names:
        assert tracers.spans() == ["apply_async/one"] * 2
    if "sentry" in tracers.names:
        submits = [s for s in tracers.sentry_spans if s["op"] == "queue.submit.celery"]
        assert len(submits) == 2 * 3
