"""Never over: the most that each algorithm admits, in every window of real time.

The clock stands still and steps back by anything; what it steps back by is no time that passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.slots import LEASE_US
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import ADAPTIVE, CONCURRENCY, FIRST_REQUEST
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import DAY, METERS, SECOND
from tests.algorithms.properties import shown
from tests.algorithms.sides import Admission, Side, in_us
from tests.algorithms.traces import Step, steady, traces, unsteady
from tests.sizes import examples

HOUR = 3600 * SECOND


def rate_of(limit: Limit) -> Rate:
    assert isinstance(limit.rate, Rate)
    return limit.rate


def most_in(admitted: Sequence[Admission], period: int) -> int:
    """Return the most in any half-open window of real time, in millionths."""
    return max(
        (
            sum(one.cost for one in admitted[place:] if one.passed < first.passed + period)
            for place, first in enumerate(admitted)
        ),
        default=0,
    )


@shown(400, (*METERS, ADAPTIVE), unsteady)
def test_a_meter_admits_its_burst_and_what_drains(side: Side, trace: list[Step]) -> Plan[None]:
    """At most burst + rate x window, in windows that include both their ends."""
    for step in trace:
        yield from side.play(step)
    p, q = rate_of(side.limit).interval
    for place, first in enumerate(side.admitted):
        total = 0
        for last in side.admitted[place:]:
            total += last.cost
            drained = (last.passed - first.passed) * q
            assert (total - side.limit.burst * MILLION) * p <= drained * MILLION


_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([1_000, 90_000, 9_000_000])),
        st.tuples(st.just("define"), st.sampled_from(["1/h", "2/h", "20/s", "1000/s"])),
        st.tuples(st.just("acquire"), st.sampled_from([5, 1])),
    ),
    min_size=12,
)


@settings(max_examples=examples(400))
@given(_CHANGES, st.sampled_from(METERS), st.sampled_from([None, "gold"]))
def test_no_more_is_admitted_across_changes_of_the_rate_than_the_rates_allow(
    steps: list[tuple[str, Any]], algorithm: str, key: str | None
) -> None:
    """At most the burst, and what drains by the rates that were in force one after the other.

    A limit of a name is converted at each change; a key only at its next decision.
    """
    now, drained = 0, Fraction(0)
    local, ref = MemoryLimits(), LimitRef("api", key)
    limit = Limit.parse(f"20/s burst 5 using {algorithm}")
    local.define(LimitRef("api", None), limit, now)
    admitted: list[tuple[Fraction, int]] = []  # what had drained since the start, and the units
    for step, value in steps:
        us = value if step == "advance" else 1  # no two calls have the same time
        p, q = rate_of(limit).interval
        now, drained = now + us, drained + Fraction(us * q, p)
        if step == "define":
            limit = Limit.parse(f"{value} burst 5 using {algorithm}")
            local.define(LimitRef("api", None), limit, now)
        elif step == "acquire" and local.acquire({ref: value}, now):
            admitted.append((drained, value))
    for place, (first, _) in enumerate(admitted):
        total = 0
        for last, units in admitted[place:]:
            total += units
            assert total <= 5 + last - first


@shown(300, ["leaky-queue"], unsteady)
def test_a_queue_starts_one_after_the_other(side: Side, trace: list[Step]) -> Plan[None]:
    """After a start, no more starts than have leaked since: the rate, without a burst."""
    starts: list[tuple[int, int]] = []
    for step in trace:
        decision = yield from side.play(step)
        if decision and decision.granted:
            delay = in_us(decision.delay)
            starts.append((side.passed + delay, side.admitted[-1].cost))
    p, q = rate_of(side.limit).interval
    for place, (began, _) in enumerate(starts):
        total = 0
        for (_, cost), (start, _) in zip(starts[place:], starts[place + 1 :], strict=False):
            total += cost
            assert total * p < (start - began + 1) * q * MILLION  # delays are rounded up


@shown(400, ["sliding-log"], unsteady)
def test_a_log_admits_its_count_in_any_period(side: Side, trace: list[Step]) -> Plan[None]:
    """At most the count in every half-open window of one period."""
    for step in trace:
        yield from side.play(step)
    assert most_in(side.admitted, rate_of(side.limit).period_us) <= side.limit.burst * MILLION


@shown(800, [CONCURRENCY], traces(acquire=5, settle=1, renew=1, advance=2, back=1))
def test_no_more_hold_slots_than_there_are(side: Side, trace: list[Step]) -> Plan[None]:
    """Holders that have not released their slots, and whose leases have not run out."""
    for step in trace:
        yield from side.play(step)
        live = [lease for lease in side.leases if lease.passed > side.passed - LEASE_US]
        assert len(live) <= side.limit.burst


@shown(300, ["fixed-window"], steady)
def test_a_fixed_window_admits_its_count(side: Side, trace: list[Step]) -> Plan[None]:
    """At most the count in every window, wherever windows begin."""
    counts: Counter[Hashable] = Counter()
    began = -1
    for step in trace:
        seen = len(side.admitted)
        yield from side.play(step)
        for admission in side.admitted[seen:]:
            if began < 0 or admission.now >= began + rate_of(side.limit).period_us:
                began = admission.now
            first = side.limit.window == FIRST_REQUEST
            window = began if first else window_of(side.limit, admission.now)
            counts[window] += admission.cost
    assert max(counts.values(), default=0) <= side.limit.burst * MILLION


def window_of(limit: Limit, now: int) -> Hashable:
    """Identify the window by its day, not by its start."""
    if not isinstance(limit.window, Calendar):
        return now // rate_of(limit).period_us
    utc = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=now)
    local = utc.astimezone(ZoneInfo(limit.window.zone)).replace(tzinfo=None)
    day = local - timedelta(hours=limit.window.hour, minutes=limit.window.minute)
    if limit.calendar_period == "month":
        return day.year, day.month
    return day.isocalendar()[:2] if limit.calendar_period == "w" else day.date()


@shown(300, ["fixed-window"], unsteady)
def test_two_fixed_windows_meet_at_most(side: Side, trace: list[Step]) -> Plan[None]:
    """At most twice the count in the length of one window, also if the clock is set back."""
    for step in trace:
        yield from side.play(step)
    assert most_in(side.admitted, shortest(side.limit)) <= 2 * side.limit.burst * MILLION


def shortest(limit: Limit) -> int:
    """Return the length of its shortest window, in microseconds."""
    if not isinstance(limit.window, Calendar):
        return rate_of(limit).period_us
    days = {"d": 1, "w": 7, "month": 28}[str(limit.calendar_period)]
    return days * DAY - HOUR


@shown(300, ["sliding-window"], steady)
def test_a_sliding_window_admits_its_count_in_its_parts(
    side: Side, trace: list[Step]
) -> Plan[None]:
    """At every admission at most the count in the current part and the others of one period.

    That is any as many parts side by side. If the oldest is weighted, the one before them counts
    too, by what of it lies within one period.
    """
    limit, part = side.limit, rate_of(side.limit).period_us // side.limit.parts
    counts: Counter[int] = Counter()
    for step in trace:
        seen = len(side.admitted)
        yield from side.play(step)
        for admission in side.admitted[seen:]:
            current, elapsed = divmod(admission.now, part)
            counts[current] += admission.cost
            whole = sum(counts[current - place] for place in range(limit.parts))
            oldest = counts[current - limit.parts] if limit.oldest == "weighted" else 0
            assert whole * part + oldest * (part - elapsed) <= limit.burst * MILLION * part


@shown(300, ["sliding-window"], unsteady)
def test_a_sliding_window_admits_its_count_in_any_time_of_all_parts_but_one(
    side: Side, trace: list[Step]
) -> Plan[None]:
    """At most the count in that time, and twice the count in one period.

    A time of all parts but one never reaches beyond as many parts as there are. A whole period
    touches one more, which may be all but forgotten at its end.
    """
    for step in trace:
        yield from side.play(step)
    limit, period = side.limit, rate_of(side.limit).period_us
    most = limit.burst * MILLION
    assert most_in(side.admitted, period - period // limit.parts) <= most
    assert most_in(side.admitted, period) <= 2 * most
