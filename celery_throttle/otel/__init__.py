"""OpenTelemetry: the waits of tasks as spans, and the figures of limits as metrics.

Needs the extra ``otel``. Imports the signals, and the table of metrics.
"""

from __future__ import annotations

from celery_throttle.otel.instrumentor import ThrottleInstrumentor
from celery_throttle.otel.metrics import export_metrics

__all__ = ["ThrottleInstrumentor", "export_metrics"]
