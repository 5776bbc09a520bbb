"""The metrics that OpenTelemetry collects are those of the page for Prometheus."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_throttle import Limiter
from celery_throttle.otel import export_metrics
from tests.observe.metrics.page import PREFIX, read_page
from tests.protocol import SECOND, Protocol
from tests.servers.server import free_port

#: They change from one reading to the next.
CHANGING = {"oldest_wait_seconds", "forecast_seconds"}

Samples = dict[tuple[str, frozenset[tuple[str, Any]]], float]


def collect(throttle: Any) -> Samples:
    """What OpenTelemetry collects, by name and attributes."""
    reader = InMemoryMetricReader()
    export_metrics(throttle, meter_provider=MeterProvider([reader]))
    data: Any = reader.get_metrics_data()
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_they_are_those_of_the_page(lines: Protocol) -> None:
    lines.limiter.try_acquire("api", 1000)
    for number in range(5):
        lines.park(str(number), ["api"])
    lines.limiter["api"].reset()
    lines.now += 2 * SECOND
    assert len(lines.claim(room=3)) == 3
    lines.limiter["api"].pause(3600, reason="a test")

    collected, page = collect(lines.limiter), read_page(lines.limiter)._samples
    assert collected.keys() == page.keys()
    for sample, value in page.items():
        if sample[0].removeprefix(PREFIX) not in CHANGING:
            assert collected[sample] == pytest.approx(value), sample
    labels = frozenset({("limit", "api")})
    assert collected[PREFIX + "wait_seconds_count", labels] == 3
    assert collected[PREFIX + "tasks_waiting", labels] == 2


def test_a_server_that_is_lost() -> None:
    limiter = Limiter(f"redis://127.0.0.1:{free_port()}/0")
    assert collect(limiter) == {(PREFIX + "up", frozenset()): 0}


def test_a_collection_reads_the_server_once(lines: Protocol, monkeypatch: Any) -> None:
    plans: list[Any] = []
    run = lines.limiter.run_plan

    def note(plan: Any) -> Any:
        plans.append(plan)
        return run(plan)

    monkeypatch.setattr(lines.limiter, "run_plan", note)
    collect(lines.limiter)
    assert len(plans) == 1
