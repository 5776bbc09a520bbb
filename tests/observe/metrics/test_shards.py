"""Metrics of several shards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_throttle import Limiter
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.shards import Shard
from celery_throttle.operations.rules import pack_report, report_rules
from celery_throttle.otel import export_metrics
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.observe.metrics.page import read_page
from tests.servers.server import Server

pytestmark = pytest.mark.thorough

LIMITS = {"api": "100/h burst 10", "mail": "100/h burst 20", "tenant": "100/h burst 40"}


@pytest.fixture
def limiter(redis_url: str, own_server: Server) -> Iterator[Limiter]:
    shards = {
        "far": {"limits": ["mail"], "url": own_server.url},
        "tenants": {"limits": ["tenant"], "by_key": 64},
    }
    limiter = Limiter(redis_url, LIMITS, shards=shards, timeout=30)
    limiter.register()
    yield limiter
    assert limiter.parts
    for part in limiter.parts.all():
        part.store.close()


def test_a_label_has_the_name_of_the_setting(limiter: Limiter, own_server: Server) -> None:
    limiter["api"].acquire(2)
    limiter["mail"].acquire(3)
    for key in range(20):
        limiter["tenant", key].acquire(2)
    page = read_page(limiter)
    assert page.of("up") == {("home",): 1, ("far",): 1, ("tenants",): 1}
    assert page.of("units_granted_total") == {
        ("api", "home"): 2,
        ("mail", "far"): 3,
        ("tenant", "tenants"): 40,
    }
    assert page.get("limit_units_per_second", limit="tenant", shard="tenants") == 100 / 3600
    assert page.get("refusals_total", limit="mail", reason="limit", shard="far") == 0
    assert page.of("limits_omitted") == {("home",): 0, ("far",): 0, ("tenants",): 0}
    own_server.stop()
    page = read_page(limiter)
    assert page.of("up") == {("home",): 1, ("far",): 0, ("tenants",): 1}
    assert page.of("units_granted_total").keys() == {("api", "home"), ("tenant", "tenants")}
    own_server.start()


def test_an_entry_is_up_if_all_its_shards_are(limiter: Limiter, client: Any) -> None:
    broken = Keys(shard_prefix(DEFAULT_PREFIX, Shard("tenants", 5, 64)))
    client.set(broken.membership, "not what it should be")
    page = read_page(limiter)
    client.delete(broken.membership)
    assert page.of("up") == {("home",): 1, ("far",): 1, ("tenants",): 0}
    assert page.of("tasks_waiting").keys() == {("api", "home"), ("mail", "far")}


def test_a_rules_file_with_mistakes_is_seen_if_one_shard_knows_of_it(
    limiter: Limiter, client: Any
) -> None:
    apply_rules(limiter, read_rules('[limits]\napi = "7/h"', "limits.toml"), "limits.toml")
    assert limiter.parts
    part = limiter.parts[Shard("tenants", 5, 64)]
    client.zadd(part.keys.membership, {"w": (time.time() + 60) * 1e6})
    client.expire(part.keys.membership, 60)
    report = pack_report(None, "limits.toml", "limits.toml:3: wrong")
    part.run_plan(report_rules(part.plans, "w", report, "", 60))
    found = read_page(limiter).of("rules_file_valid")
    assert found == {("home",): 1, ("far",): 1, ("tenants",): 0}


def test_the_most_limits_are_those_of_all_shards(limiter: Limiter) -> None:
    page = read_page(limiter, max_limits=2)
    assert page.of("tasks_waiting").keys() == {("api", "home"), ("mail", "far")}
    assert page.of("limits_omitted") == {("home",): 0, ("far",): 0, ("tenants",): 1}


def test_opentelemetry_has_the_label(limiter: Limiter) -> None:
    reader = InMemoryMetricReader()
    export_metrics(limiter, meter_provider=MeterProvider([reader]))
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    found = {metric.name: metric.data.data_points for metric in scope.metrics}
    labels = [dict(point.attributes) for point in found["celery_throttle_tasks_waiting"]]
    assert {"limit": "mail", "shard": "far"} in labels
    assert len(labels) == len(LIMITS)
