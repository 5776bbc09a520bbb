"""Metrics for Prometheus: a collector for any registry, and a WSGI app."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from wsgiref.simple_server import WSGIServer

from celery_throttle.errors import require_extra
from celery_throttle.observe.metrics import table
from celery_throttle.observe.metrics.table import MAX_LIMITS, Observed

with require_extra("prometheus_client", "a page of metrics", "metrics"):
    import prometheus_client
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

__all__ = ["ThrottleCollector", "make_wsgi_app"]

_FAMILIES: dict[str, Any] = {
    table.COUNTER: CounterMetricFamily,
    table.GAUGE: GaugeMetricFamily,
    table.HISTOGRAM: HistogramMetricFamily,
}


class ThrottleCollector(Collector):
    """Collects the metrics of all limits of a server, for a registry of prometheus-client.

    Each scrape reads the server; nothing is stored in between. Every process shows the metrics of
    the whole fleet, so scrape only one. If the server does not answer, the scrape ends within the
    timeout of the limiter, and shows ``celery_throttle_up 0`` and no other value.

    Args:
        throttle: The :class:`~celery_throttle.Throttle` of an app, or a
            :class:`~celery_throttle.Limiter`.
        max_limits: The most limits that a page shows, by name; default 1,000. The metric
            ``celery_throttle_limits_omitted`` is the number of the others.

    Example:
        ::

            from prometheus_client import REGISTRY

            REGISTRY.register(ThrottleCollector(throttle))
    """

    def __init__(self, throttle: Observed, *, max_limits: int = MAX_LIMITS) -> None:
        self._source = table.SampleSource(throttle, max_limits)

    def describe(self) -> list[Metric]:
        """Return the metrics without values, for the registry. Does not call the server.

        :meta private:
        """
        return [_make_family(metric, metric.labels) for metric in table.METRICS]

    def collect(self) -> Iterator[Metric]:
        """Read the server and yield all metrics.

        :meta private:
        """
        samples = self._source.read()
        for metric in table.METRICS:
            found = samples[metric.name]
            family = _make_family(metric, [*found[0][0]] if found else metric.labels)
            for labels, value in found:
                values = value if isinstance(value, table.Histogram) else [value]
                family.add_metric([*labels.values()], *values)
            yield family


def make_registry(
    throttle: Observed, *, max_limits: int = MAX_LIMITS
) -> prometheus_client.CollectorRegistry:
    """Return a registry that has only a :class:`ThrottleCollector` of these arguments."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(ThrottleCollector(throttle, max_limits=max_limits))
    return registry


def make_wsgi_app(throttle: Observed, *, max_limits: int = MAX_LIMITS) -> Callable[..., Any]:
    """Return a WSGI app that serves a page of the metrics of all limits, and nothing else.

    Mount it in a web app, or give it to any WSGI server. It answers every path.

    Args:
        throttle: The :class:`~celery_throttle.Throttle` of an app, or a
            :class:`~celery_throttle.Limiter`.
        max_limits: As for :class:`ThrottleCollector`; default 1,000.
    """
    app: Callable[..., Any] = prometheus_client.make_wsgi_app(
        make_registry(throttle, max_limits=max_limits)
    )
    return app


def start_server(
    throttle: Observed, port: int, host: str, *, max_limits: int = MAX_LIMITS
) -> WSGIServer:
    """Serve the page in threads of this process; return the server. OSError: it cannot listen."""
    registry = make_registry(throttle, max_limits=max_limits)
    server, _ = prometheus_client.start_http_server(port, host, registry)
    return server


def _make_family(metric: table.Metric, labels: Sequence[str]) -> Any:
    return _FAMILIES[metric.kind](f"{table.PREFIX}{metric.name}", metric.help, labels=labels)
