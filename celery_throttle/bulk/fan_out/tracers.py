"""The trace of a fan-out: one producer span, and the same trace headers in all its messages.

The Celery integrations of OpenTelemetry and Sentry start a span for each message and add headers
that differ from message to message. A fan-out lets them see the message of its first task once. The
headers that they add to it go into all messages, which are made while the tracers are suppressed.
So a fan-out has one producer span, and its messages can be made from templates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.utils.dispatch import Signal

from celery_throttle.bulk.capturing_producer import CapturedMessage

_OPENTELEMETRY = "opentelemetry.instrumentation.celery"
_SENTRY = "sentry_sdk.integrations.celery"

#: The header by which a task opts out of Sentry's tracing.
_SENTRY_OPT_OUT = "sentry-propagate-traces"

#: Headers that contain a trace, or change what a tracer does, begin with one of these.
_TRACE_PREFIXES = ("baggage", "sentry-", "traceparent", "tracestate")

_suppressed = ContextVar("throttle_tracers_suppressed", default=False)


def are_tracers_loaded() -> bool:
    """Return whether this process has loaded a tracer's integration with Celery."""
    return _OPENTELEMETRY in sys.modules or _SENTRY in sys.modules


def has_trace_headers(headers: Mapping[str, Any]) -> bool:
    """Return whether headers that a user gave to a task are about traces."""
    return any(name.startswith(_TRACE_PREFIXES) for name in headers)


def receivers_of_users(signal: Signal) -> list[Any]:
    """Return the receivers of a signal, except those of OpenTelemetry."""
    return [receiver for _, receiver in signal.receivers or () if not _is_tracer(receiver)]


@contextmanager
def suppress_tracers() -> Iterator[None]:
    """Context in which OpenTelemetry does not see messages that this thread publishes.

    For Sentry, publish with headers of :class:`SentryOptOut`.
    """
    for signal in (signals.before_task_publish, signals.after_task_publish):
        _guard_tracers(signal)
    token = _suppressed.set(True)
    try:
        yield
    finally:
        _suppressed.reset(token)


def _is_tracer(receiver: Any) -> bool:
    module = getattr(receiver, "__module__", None)
    return isinstance(receiver, _GuardedTracer) or module == _OPENTELEMETRY


def _guard_tracers(signal: Any) -> None:
    """Replace the tracers among a signal's receivers; other threads notice no difference.

    They keep their lookup keys, so OpenTelemetry's ``uninstrument()`` finds them.
    """
    with signal.lock:
        for index, (key, receiver) in enumerate(signal.receivers):
            if _is_tracer(receiver) and not isinstance(receiver, _GuardedTracer):
                signal.receivers[index] = key, _GuardedTracer(receiver)


@dataclass(frozen=True, slots=True)
class _GuardedTracer:
    """A receiver of OpenTelemetry that is not called while tracers are suppressed."""

    receiver: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if _suppressed.get() else self.receiver(*args, **kwargs)


class SentryOptOut(dict[str, Any]):
    """Headers of a task to which Sentry adds nothing.

    Sentry wraps both ``apply_async`` and ``send_task``, and a task passes both. The first wrapper
    removes the header for the opt-out, so from a plain dict the second would not learn of it.
    """

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a header, and return it; False for the opt-out, which is no header of the task."""
        return False if key == _SENTRY_OPT_OUT else super().pop(key, *default)


@dataclass(frozen=True, slots=True)
class TraceHeaders:
    """The headers that the tracers add to each message of a fan-out. Made by :meth:`between`."""

    headers: Mapping[str, Any]
    #: Those in the header "headers" as well, where Sentry repeats its own and all the task's
    #: headers. None if no tracer does that.
    nested: Mapping[str, Any] | None

    @classmethod
    def between(
        cls, untraced: CapturedMessage, traced: CapturedMessage, given: Mapping[str, Any]
    ) -> TraceHeaders | None:
        """Return the difference of two messages of one call, whose headers ``given`` are its own.

        None if the tracers change messages in an unknown way.
        """
        headers = {k: v for k, v in traced.headers.items() if k not in untraced.headers}
        inner = headers.pop("headers", None)
        nested = None
        if inner is not None:
            nested = {name: value for name, value in inner.items() if name in headers}
        trace = cls(headers, nested)
        trace.add_to(untraced, given)
        return trace if _content(untraced) == _content(traced) else None

    def add_to(self, message: CapturedMessage, given: Mapping[str, Any]) -> None:
        """Add the headers to a message whose task was given some headers of its own."""
        message.headers.update(self.headers)
        if self.nested is not None:
            message.headers["headers"] = {**given, **self.nested}


def _content(message: CapturedMessage) -> tuple[Any, ...]:
    return message.headers, message.properties, message.body, message.delivery_info
