"""The trace of a fan-out: one producer span, and the same trace headers in all its messages.

The Celery integrations of OpenTelemetry and Sentry start a span for each message and add headers
that differ from message to message. A fan-out lets them see its first message. The headers that
they add to it go into all others, which are made while the tracers are suppressed. So a fan-out has
one producer span, and its messages can be made from templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import signals
from celery.utils.dispatch import Signal

#: The module of OpenTelemetry's receivers. Sentry wraps methods of Celery's classes instead.
_OPENTELEMETRY = "opentelemetry.instrumentation.celery"

#: The header by which a task opts out of Sentry's tracing.
_SENTRY_OPT_OUT = "sentry-propagate-traces"

#: How headers begin that contain a trace, or change what a tracer does.
_TRACE_PREFIXES = (
    *("baggage", "sentry-", "traceparent", "tracestate"),
    *("b3", "x-b3-", "uber-trace-id", "x-amzn-trace-id"),
)

_suppressed = ContextVar("throttle_tracers_suppressed", default=False)


def trace_of(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers that are about a trace."""
    return {
        name: value for name, value in headers.items() if name.lower().startswith(_TRACE_PREFIXES)
    }


def copy_trace(source: Mapping[str, Any], target: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Copy the trace of one message to the headers of another, whose task was ``given`` headers.

    Sentry repeats its own headers, and those of the task, in the header "headers".
    """
    target.update(trace_of(source))
    if isinstance(source.get("headers"), Mapping):
        target["headers"] = {**given, **trace_of(source["headers"])}


def receivers_of_users(signal: Signal) -> list[Any]:
    """Return the receivers of a signal, except those of OpenTelemetry."""
    return [receiver for _, receiver in signal.receivers or () if not _is_tracer(receiver)]


@contextmanager
def suppress_tracers() -> Iterator[None]:
    """Context in which OpenTelemetry does not see messages that this thread publishes.

    For Sentry, publish with headers of :class:`SentryOptOut`.
    """
    _guard_tracers(signals.before_task_publish)
    _guard_tracers(signals.after_task_publish)
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
        for index, (key, receiver) in enumerate(signal.receivers or ()):
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
