"""Each metric, against a server on which time stands still."""

from __future__ import annotations

import random
import re
from math import inf
from typing import Any

import pytest

from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.observe.metrics.table import METRICS
from celery_throttle.observe.totals import DROP_REASONS, REFUSAL_REASONS
from celery_throttle.operations.rules import pack_report, report_rules
from tests.docs import pages
from tests.observe.metrics.page import PREFIX, Page, read_page
from tests.protocol import SECOND, Protocol

QUEUE = "redis/0/celery"

LIMITS = {
    "api": ["5/s burst 5", "2/s burst 2 shadow"],
    "mail": "1/s",
    "hour": ["10/s", "360/h"],
    "slots": "2 at once",
    "adaptive": "adaptive 1..8/s",
    "few": "1/h max-waiting 1",
    "day": "1000/d using fixed-window",
    "shadowed": "1/s shadow",
}


@pytest.fixture
def lines(redis_url: str) -> Any:
    found = Protocol(redis_url, LIMITS)
    yield found
    found.close()


def page(lines: Protocol, **options: Any) -> Page:
    return read_page(lines.limiter, **options)


def park(lines: Protocol, task_id: str, *limits: Any, **options: Any) -> Any:
    return lines.park(task_id, limits, queue=options.pop("queue", QUEUE), **options)


def test_names_and_labels() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert {*metric.labels} <= {"limit", "queue", "reason", "source"}
    names = [metric.name for metric in METRICS]
    assert len({*names}) == len(names)


def test_each_metric_has_a_row_of_its_type_and_labels_in_the_documentation() -> None:
    rows = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in re.findall(
            r"^\| `(\w+)` \| (\w+) \| (.*?)\| ", pages.read("reference/metrics.md"), re.MULTILINE
        )
    }
    assert rows == {metric.name: (metric.kind, metric.labels) for metric in METRICS}


def test_a_server_without_limits(redis_url: str) -> None:
    lines = Protocol(redis_url, {})
    found = page(lines)
    lines.close()
    values = {name: found.get(name) for name in ("up", "workers", "limits_omitted")}
    assert values == {"up": 1, "workers": 0, "limits_omitted": 0}
    assert found.get("outage_seconds_total") == 0
    assert len(found) == 4


def test_rates(lines: Protocol) -> None:
    assert page(lines).of("limit_units_per_second") == {
        ("api",): 5,
        ("mail",): 1,
        ("hour",): 0.1,
        ("adaptive",): 8,
        ("few",): 1 / 3600,
        ("day",): pytest.approx(1000 / 86_400),
    }
    lines.limiter["mail"].define("30/m", lasts=60)
    assert page(lines).get("limit_units_per_second", limit="mail") == 0.5


def test_an_adaptive_rate_follows_its_share(lines: Protocol) -> None:
    adaptive = lines.limiter["adaptive"]
    adaptive.try_acquire()
    adaptive.learn(Feedback(refused=True))
    share = adaptive.status().usage[0].share
    assert share < 1
    rate = page(lines).get("limit_units_per_second", limit="adaptive")
    assert rate == pytest.approx(8 * share)


def test_calls(lines: Protocol) -> None:
    api = lines.limiter["api"]
    for _ in range(3):
        api.try_acquire()
    api.try_acquire(2)
    for _ in range(2):
        assert not api.try_acquire()
    api.pause(60)
    assert not api.try_acquire()
    found = page(lines)
    assert found.get("units_granted_total", limit="api") == 5
    refusals = {
        reason: found.get("refusals_total", limit="api", reason=reason)
        for reason in (*REFUSAL_REASONS, "api")
    }
    assert refusals == {"limit": 2, "slots": 0, "paused": 1, "keys": 0, "cost": 0, "api": 0}
    assert found.get("shadow_refusals_total", limit="api") == 2


def test_pauses(lines: Protocol) -> None:
    limiter = lines.limiter
    limiter["api"].pause(None, by="ann")
    limiter["mail"].pause(60, by="API?")
    limiter["hour", "a"].pause(60)
    limiter["slots"].pause(60)
    limiter["slots"].resume()
    limiter["few"].learn(Feedback(refused=True, stop=30.0))
    found = page(lines)
    assert found.of("pause_end_timestamp_seconds") == {
        ("api", "user"): inf,
        ("mail", "user"): lines.now / SECOND + 60,
        ("few", "api"): lines.now / SECOND + 30,
    }
    assert found.get("refusals_total", limit="few", reason="api") == 1


def test_the_forecast_of_many_lines_goes_by_the_rate_of_the_key_with_most_tasks(
    lines: Protocol,
) -> None:
    lines.add_worker()
    for number in range(201):
        park(lines, f"t{number}", lines.limiter["mail", number], may_run=False)
    for number in range(2):
        park(lines, f"more-{number}", lines.limiter["mail", 0])
    found = page(lines)
    assert found.get("tasks_waiting", limit="mail") == 203
    assert found.get("forecast_seconds", limit="mail") == 3


def test_waiting_tasks(lines: Protocol) -> None:
    lines.add_worker()
    lines.limiter["mail"].try_acquire()
    for number in range(4):
        park(lines, f"t{number}", "mail")
        lines.now += SECOND // 10
    assert park(lines, "late", "mail", max_wait=SECOND).outcome == "late"
    park(lines, "few-1", "few", may_run=False)
    assert park(lines, "few-2", "few").outcome == "full"
    found = page(lines)
    assert found.get("tasks_waiting", limit="mail") == 4
    assert found.get("oldest_wait_seconds", limit="mail") == pytest.approx(0.4, abs=1e-3)
    assert found.get("oldest_wait_seconds", limit="api") is None
    assert found.get("forecast_seconds", limit="mail") == pytest.approx(3.6)
    assert found.get("forecast_seconds", limit="api") is None
    assert found.get("tasks_parked_total", limit="mail") == 4
    assert found.get("tasks_dropped_total", limit="mail", reason="late") == 1
    assert found.get("tasks_dropped_total", limit="few", reason="full") == 1
    reasons = {reason for _, reason in found.of("tasks_dropped_total")}
    assert reasons == {*DROP_REASONS, "replaced", "revoked", "purged", "removed"}


def test_when_the_next_task_is_due(lines: Protocol) -> None:
    def next_due() -> float | None:
        return page(lines).get("next_due_seconds", limit="day")

    lines.limiter["day"].try_acquire(1000)
    assert next_due() is None
    park(lines, "t1", "day")
    day = 86_400 - lines.now / SECOND % 86_400
    assert next_due() == pytest.approx(day)
    park(lines, "t2", ("day", "a"), may_run=False)
    assert next_due() == 0
    lines.limiter["day", "a"].pause(None)
    lines.claim(queues=[QUEUE])
    assert next_due() == pytest.approx(day)
    lines.limiter["day"].reset()
    lines.limiter["day"].pause(None)
    lines.claim(queues=[QUEUE])
    assert next_due() == inf


def test_waits_are_a_histogram(lines: Protocol) -> None:
    lines.limiter["mail"].try_acquire()
    for number in range(4):
        park(lines, f"t{number}", "mail")
    for _ in range(4):
        lines.now += SECOND
        assert len(lines.claim(queues=[QUEUE])) == 1
    found = page(lines)
    buckets = found.of("wait_seconds_bucket")
    # The tasks waited 1, 2, 3 and 4 seconds.
    of_mail = {bound: count for (bound, limit), count in sorted(buckets.items()) if limit == "mail"}
    assert {bound: of_mail[bound] for bound in ("0.1", "0.4", "1.6", "6.4", "+Inf")} == {
        "0.1": 0,
        "0.4": 0,
        "1.6": 1,
        "6.4": 4,
        "+Inf": 4,
    }
    assert len(of_mail) == 11
    assert found.get("wait_seconds_count", limit="mail") == 4
    assert found.get("wait_seconds_sum", limit="mail") == pytest.approx(10, rel=0.5)
    assert found.get("tasks_released_total", limit="mail") == 4
    assert found.get("units_granted_total", limit="mail") == 5


@pytest.mark.parametrize("bucket", range(21))
def test_each_bucket_of_the_counters_is_in_one_with_its_bound(lines: Protocol, bucket: int) -> None:
    lines.client.hset(lines.keys.totals("mail"), str(bucket), 3)
    lines.client.expire(lines.keys.totals("mail"), 60)
    found = page(lines).of("wait_seconds_bucket")
    longest = 0.1 * 2**bucket if bucket < 20 else inf
    for (bound, limit), count in found.items():
        if limit == "mail":
            assert count == (3 if float(bound) >= longest * 0.999 else 0), bound


def test_slots(lines: Protocol) -> None:
    slots = lines.limiter["slots"]
    with slots.slot(), slots.slot():
        found = page(lines)
        assert found.of("slots_held") == found.of("slots_in_force") == {("slots",): 2}
    assert page(lines).of("slots_held") == {("slots",): 0}


def test_the_slots_in_force_follow_what_was_learned(lines: Protocol) -> None:
    lines.limiter["slots"].define("adaptive 2..50 at once", lasts=600)
    assert page(lines).of("slots_in_force") == {("slots",): 50}
    learned = []
    for _ in range(3):
        lines.limiter["slots"].learn(Feedback(refused=True))
        lines.now += SECOND
        learned.append(page(lines).get("slots_in_force", limit="slots"))
    assert learned == [35, 24, 16]  # 70%, as there was no good answer in between
    lines.limiter["slots"].pause(60)
    assert page(lines).get("slots_in_force", limit="slots") == 16
    lines.limiter["slots"].reset()
    assert page(lines).get("slots_in_force", limit="slots") == 50


def test_slots_of_keys_with_waiting_tasks(lines: Protocol) -> None:
    for key in ("a", "b", "c"):
        for number in range(2):
            park(lines, f"{key}{number}", ("slots", key), holder=f"{key}{number}")
    assert page(lines).of("slots_held") == {("slots",): 0}
    park(lines, "a2", ("slots", "a"), holder="a2")
    park(lines, "b2", ("slots", "b"), holder="b2")
    assert page(lines).of("slots_held") == {("slots",): 4}
    lines.limiter["slots", "a"].reset()
    assert page(lines).of("slots_held") == {("slots",): 4}
    lines.now += 61 * SECOND  # all leases have expired
    assert page(lines).of("slots_held") == {("slots",): 0}
    lines.client.flushall()
    assert page(lines).of("slots_held") == {("slots",): 0}


def test_leases_of_slots_and_claims_that_expire(lines: Protocol) -> None:
    for number in range(3):
        park(lines, f"s{number}", "slots", holder=f"h{number}", lease=5 * SECOND)
    assert page(lines).of("slots_held") == {("slots",): 2}
    lines.now += 3 * SECOND
    park(lines, "other", "slots", holder="other", lease=60 * SECOND)
    lines.now += 3 * SECOND
    (claimed,) = lines.claim(queues=[QUEUE], lease=5 * SECOND)
    assert claimed.id == "s2"
    found = page(lines)
    assert found.get("leases_expired_total", limit="slots") == 2
    assert found.get("slots_held", limit="slots") == 1
    lines.now += 6 * SECOND
    lines.claim("v", 0, queues=[QUEUE])
    lines.back("w", "dead")
    assert page(lines).get("leases_expired_total", limit="slots") == 3


def test_the_fleet(lines: Protocol) -> None:
    lines.client.zadd(lines.keys.membership, {"w1": lines.now + SECOND, "w2": lines.now - 1})
    lines.client.expire(lines.keys.membership, 60)
    lines.client.set(lines.keys.outages, 2_500_000, ex=60)
    found = page(lines)
    assert (found.get("workers"), found.get("outage_seconds_total")) == (1, 2.5)


def test_tasks_that_no_worker_can_start(lines: Protocol) -> None:
    park(lines, "t0", "mail", may_run=False)
    assert page(lines).of("tasks_stranded") == {("celery", "queue"): 1}
    lines.client.zadd(lines.keys.membership, {"w": lines.now + 3600 * SECOND})
    lines.client.expire(lines.keys.membership, 60)
    assert page(lines).of("tasks_stranded") == {}
    lines.now += 16 * SECOND
    assert page(lines).of("tasks_stranded") == {("celery", "queue"): 1}
    lines.client.zadd(lines.keys.consumed_queues, {lines.keys.queue(QUEUE).lines: lines.now})
    lines.client.expire(lines.keys.consumed_queues, 60)
    (claimed,) = lines.claim(queues=[QUEUE])
    lines.set_aside("w", claimed.token)
    assert page(lines).of("tasks_stranded") == {("", "task"): 1}
    lines.recall("t0")


def test_the_rules_file(lines: Protocol) -> None:
    limiter = lines.limiter
    assert page(lines).get("rules_file_valid") is None
    apply_rules(limiter, read_rules('[limits]\nmail = "7/s"', "limits.toml"), "limits.toml")
    assert page(lines).get("rules_file_valid") == 1
    lines.client.zadd(lines.keys.membership, {"w1": lines.now + SECOND})
    lines.client.pexpire(lines.keys.membership, 60_000)
    report = pack_report(None, "limits.toml", "limits.toml:3: wrong")
    limiter.run_plan(report_rules(limiter.plans, "w1", report, "", 60))
    assert page(lines).get("rules_file_valid") == 0


def test_at_most_so_many_limits(lines: Protocol) -> None:
    found = page(lines, max_limits=3)
    assert found.get("limits_omitted") == 5
    assert [limit for (limit,) in found.of("tasks_waiting")] == ["adaptive", "api", "day"]


def test_keys_are_not_on_the_page(lines: Protocol) -> None:
    before = len(page(lines))
    limiter = lines.limiter
    for number in range(30):
        limiter["mail", f"secret-{number}"].try_acquire()
        park(lines, f"t{number}", ("mail", f"secret-{number}"))
        limiter["mail", f"secret-{number}"].pause(60 if number % 2 else None)
        limiter["api", f"secret-{number}"].try_acquire()
    found = page(lines)
    assert "secret" not in found.text
    assert found.get("tasks_waiting", limit="mail") == 30
    # The oldest wait, the forecast, the due time, and two samples of the queue are new.
    assert len(found) <= before + 5


def test_totals_of_keys_are_those_of_calls(lines: Protocol) -> None:
    dice, granted = random.Random(1), 0.0
    for _ in range(50):
        lines.now += dice.randrange(SECOND)
        granted += lines.limiter["api", dice.randrange(3)].acquire_up_to(2.5).granted
    assert page(lines).get("units_granted_total", limit="api") == pytest.approx(granted)
    assert f'{PREFIX}units_granted_total{{limit="api"}}' in page(lines).text
