"""The instrumentor: makes a span of each wait."""

from __future__ import annotations

import time
from typing import Any

from celery_throttle.errors import require_extra
from celery_throttle.signals import task_released

with require_extra("opentelemetry", "celery_throttle.otel", "otel"):
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context

SPAN_NAME = "throttle wait"

_NANOSECONDS = 1_000_000_000

#: Arguments of the signal that are attributes of every span.
_FIELDS = ("limit", "wait", "position")

#: The receiver of the signal is connected under this name, so there is at most one in a process.
_UID = "celery_throttle.otel"


class ThrottleInstrumentor:
    """Makes a span ``throttle wait`` for each task that has waited.

    Use it like the instrumentors of OpenTelemetry: ``ThrottleInstrumentor().instrument()``, in the
    main process of a worker. ``opentelemetry-instrument`` finds and calls it by itself.

    The span begins when the task joined its line, or began to wait at the broker. It ends when a
    worker starts the task. Its parent is the span that sent the task, which the global propagator
    reads from the message. A task whose message has no trace context gets no span.

    The span has these attributes:

    * ``celery_throttle.limit``: the name of the limit that the task waited for last;
    * ``celery_throttle.key``: the key of that limit, if it has keys and ``keys`` is set;
    * ``celery_throttle.wait``: seconds;
    * ``celery_throttle.position``: the position in the line when the task joined it, from 1; 0 if
      the task waited at the broker;
    * ``celery.task_name`` and ``messaging.message.id``: the name and the id of the task.
    """

    def instrument(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        keys: bool = False,
        **options: Any,  # noqa: ARG002  # see below
    ) -> None:
        """Make spans from now on. A second call replaces the arguments of the first.

        Args:
            tracer_provider: Where the spans go. None (the default): the global provider.
            keys: Whether spans have the key of the limit, which may identify a customer.
            **options: What ``opentelemetry-instrument`` passes to all instrumentors; ignored.
        """
        tracer = trace.get_tracer("celery_throttle", tracer_provider=tracer_provider)
        fields = (*_FIELDS, "key") if keys else _FIELDS

        def record(sender: Any, request: Any, **released: Any) -> None:
            end = time.time_ns()
            context = propagate.extract(request.request_dict, Context())
            if not trace.get_current_span(context).get_span_context().is_valid:
                return
            attributes = {
                "celery.task_name": sender.name,
                "messaging.message.id": request.id,
                **{
                    f"celery_throttle.{name}": released[name]
                    for name in fields
                    if released[name] is not None
                },
            }
            start = end - round(released["wait"] * _NANOSECONDS)
            tracer.start_span(SPAN_NAME, context, attributes=attributes, start_time=start).end(end)

        self.uninstrument()
        task_released.connect(record, weak=False, dispatch_uid=_UID)

    def uninstrument(self, **options: Any) -> None:  # noqa: ARG002  # as for instrument()
        """Make no more spans."""
        task_released.disconnect(dispatch_uid=_UID)
