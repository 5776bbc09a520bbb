"""Tracers of the process that sends tasks: the Celery integrations of OpenTelemetry and Sentry."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

#: The tracers that :func:`trace` knows.
OPENTELEMETRY, SENTRY = "opentelemetry", "sentry"


@contextmanager
def trace(names: Collection[str]) -> Iterator[None]:
    """Context in which these tracers are active, and in a trace."""
    if OPENTELEMETRY in names:
        _start_opentelemetry()
    if SENTRY not in names:
        yield
        return
    with _start_sentry():
        yield


def _start_opentelemetry() -> None:
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415  # if used
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # if used

    instrumentor: Any = CeleryInstrumentor  # has no types
    instrumentor().instrument(tracer_provider=TracerProvider())


def _start_sentry() -> Any:
    """Return a transaction of Sentry; nothing leaves the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of eventlet, which it imports if it is installed
        import sentry_sdk  # noqa: PLC0415  # if used
    from sentry_sdk.integrations.celery import CeleryIntegration  # noqa: PLC0415  # if used
    from sentry_sdk.transport import Transport  # noqa: PLC0415  # if used

    class Discard(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            """Discard an envelope."""

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Discard(),
        traces_sample_rate=1.0,
        auto_enabling_integrations=False,
        integrations=[CeleryIntegration()],
    )
    return sentry_sdk.start_transaction(name="fan-out")
