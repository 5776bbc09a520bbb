"""Metrics: the table of :mod:`celery_throttle.observe.metrics` as instruments of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from celery_throttle.app import Throttle
from celery_throttle.errors import require_extra
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.observe.metrics import table
from celery_throttle.observe.metrics.table import MAX_LIMITS, Metric, SampleSource

with require_extra("opentelemetry", "celery_throttle.otel", "otel"):
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

#: Samples are read once for all instruments of a collection, which asks one after the other.
_CACHE_SECONDS = 1.0

_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")


def export_metrics(
    throttle: Throttle | Limiter,
    *,
    meter_provider: MeterProvider | None = None,
    max_limits: int = MAX_LIMITS,
) -> None:
    """Export the metrics of all limits of a server, with the names that Prometheus shows.

    Each collection reads the server once. Every process exports the metrics of the whole fleet, so
    call this in only one process. OpenTelemetry has no observable histogram: a histogram is
    exported as three counters, whose names end in ``_bucket``, ``_count`` and ``_sum``.

    Args:
        throttle: The :class:`~celery_throttle.Throttle` of an app, or a
            :class:`~celery_throttle.Limiter`.
        meter_provider: Where the metrics go. None (the default): the global provider.
        max_limits: The most limits that are exported, by name; default 1,000. The metric
            ``celery_throttle_limits_omitted`` is the number of the others.
    """
    meter = get_meter("celery_throttle", meter_provider=meter_provider)
    source = SampleSource(throttle, max_limits, _CACHE_SECONDS)
    for metric in table.METRICS:
        _create_instruments(meter, metric, source)


def _create_instruments(meter: Meter, metric: Metric, source: SampleSource) -> None:
    create: Callable[..., object] = (
        meter.create_observable_gauge
        if metric.kind == table.GAUGE
        else meter.create_observable_counter
    )
    for suffix in _HISTOGRAM_SUFFIXES if metric.kind == table.HISTOGRAM else ("",):
        unit = "s" if "seconds" in metric.name and suffix in ("", "_sum") else ""
        callback = partial(_observe, source, metric, suffix)
        create(f"{table.PREFIX}{metric.name}{suffix}", [callback], unit, metric.help)


def _observe(
    source: SampleSource, metric: Metric, suffix: str, _: CallbackOptions
) -> Iterator[Observation]:
    for attributes, value in source.read()[metric.name]:
        if not isinstance(value, table.Histogram):
            yield Observation(value, attributes)
        elif suffix == "_bucket":
            for bound, count in value.buckets:
                yield Observation(count, {**attributes, "le": bound})
        else:
            total = value.sum if suffix == "_sum" else value.buckets[-1][1]
            yield Observation(total, attributes)
