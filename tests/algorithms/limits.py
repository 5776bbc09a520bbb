"""Limits of every algorithm, for generated traces.

They reach as far as definitions may: intervals of no whole number of microseconds, and amounts up
to the last that the scripts count exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.duration import MAX_EXACT, UNITS
from celery_throttle.limits.grammar import ADAPTIVE, ALGORITHMS, CONCURRENCY, FIRST_REQUEST
from celery_throttle.limits.limit import MAX_ADAPTIVE_RATIO, MAX_PARTS, Limit
from celery_throttle.limits.rate import MAX_PERIOD_US, MAX_UNITS, Concurrency, Rate

SECOND = 1_000_000
DAY = 86_400 * SECOND

METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")
RATES = (*ALGORITHMS, ADAPTIVE)
EVERY = (*RATES, CONCURRENCY)

Limits = st.SearchStrategy[Limit]

# Most of these emit a unit in no whole number of microseconds.
ODD_RATES = (
    Rate(3, SECOND),
    Rate(100, SECOND),
    Rate(7, DAY),
    Rate(1, 1),
    Rate(1_000_003, SECOND),
    Rate(999_999_937, DAY),
    Rate(3, 2**44),
    Rate(MAX_UNITS, 1),
    Rate(1, MAX_PERIOD_US),
    Rate(1, MAX_PERIOD_US - 1),
)
#: Zones whose clocks change by an hour, by half an hour, and not at all.
ZONES = ("UTC", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu")
#: Times of a day that none of them ever skips.
HOURS = ((0, 0), (7, 30), (23, 59))

_few = st.integers(1, 9)
_rates = st.sampled_from(ODD_RATES) | st.builds(
    Rate, _few | st.integers(1, MAX_UNITS), st.integers(1, MAX_PERIOD_US)
)


def _meter(algorithm: str, bursts: st.SearchStrategy[float]) -> Limits:
    """Bursts below 1 are shares of the largest exact burst; others are units."""

    def make(rate: Rate, burst: float) -> Limit:
        most = min(MAX_UNITS, MAX_EXACT // rate.interval[0])
        return Limit(rate, max(1, min(most, int(burst if burst >= 1 else burst * most))), algorithm)

    return st.builds(make, _rates, bursts)


def _meters(algorithm: str) -> tuple[Limits, ...]:
    some = st.sampled_from([0.0, 0.001, 0.3, 0.999])
    bursts = (st.just(1), _few, some, st.just(0.9999999999))
    return tuple(_meter(algorithm, burst) for burst in bursts)


def _adaptive(bursts: st.SearchStrategy[float]) -> Limits:
    """The lowest rate is a share of the highest; bursts as for a meter."""

    def make(rate: Rate, lowest: float, burst: float, latency: int | None) -> Limit:
        most = min(MAX_UNITS, MAX_EXACT // MAX_ADAPTIVE_RATIO // rate.interval[0])
        units = max(1, min(most, int(burst if burst >= 1 else burst * most)))
        count = max(1, -(-rate.count // MAX_ADAPTIVE_RATIO), int(rate.count * lowest))
        return Limit(rate, units, ADAPTIVE, lowest=count, latency_us=latency)

    exact = _rates.filter(lambda rate: rate.interval[0] <= MAX_EXACT // MAX_ADAPTIVE_RATIO)
    shares, latencies = st.sampled_from([0.1, 0.0, 0.5, 1.0]), st.sampled_from([None, 1, 1000])
    return st.builds(make, exact, shares, bursts, latencies)


_counts = _few | st.integers(1, MAX_UNITS)
_calendars = st.builds(
    lambda zone, at: Calendar(zone, *at), st.sampled_from(ZONES), st.sampled_from(HOURS)
)


def _fixed(rates: st.SearchStrategy[Rate], windows: st.SearchStrategy[str | Calendar]) -> Limits:
    return st.builds(
        lambda rate, window: Limit(rate, algorithm="fixed-window", window=window), rates, windows
    )


def _calendar(period: str) -> Limits:
    return _fixed(st.builds(Rate, _counts, st.just(UNITS[period])), _calendars)


def _sliding(parts: st.SearchStrategy[int], oldest: str) -> Limits:
    def make(count: int, parts: int, part: int) -> Limit:
        rate = Rate(count, part * parts)
        return Limit(rate, algorithm="sliding-window", parts=parts, oldest=oldest)

    lengths = st.sampled_from([5 * SECOND, 1, 7, SECOND, DAY])
    return st.builds(make, _counts, parts, lengths | st.integers(1, MAX_PERIOD_US // MAX_PARTS))


_one, _several = st.just(1), st.integers(2, 5) | st.integers(2, MAX_PARTS)
_log = st.builds(lambda rate: Limit(rate, algorithm="sliding-log"), _rates)

#: The limits that one example plays its trace at, by algorithm.
LIMITS: Mapping[str, tuple[Limits, ...]] = {
    **{algorithm: _meters(algorithm) for algorithm in METERS},
    "fixed-window": (
        _fixed(_rates, st.just("epoch")),
        _fixed(_rates, st.just(FIRST_REQUEST)),
        _calendar("d"),
        _calendar("w") | _calendar("month"),
    ),
    "sliding-log": (_log, _log, _log, _log),
    "sliding-window": (
        _sliding(_one, "weighted"),
        _sliding(_several, "weighted"),
        _sliding(_several, "dropped"),
        _sliding(_one | _several, "dropped"),
    ),
    ADAPTIVE: tuple(
        _adaptive(bursts)
        for bursts in (st.just(1), _few, st.sampled_from([0.001, 0.3]), st.just(0.9999999999))
    ),
    CONCURRENCY: (
        *(st.just(Limit(Concurrency(slots))) for slots in (1, 2)),
        st.sampled_from([Limit(Concurrency(3)), Limit(Concurrency(3), lowest=2, latency_us=1)]),
        st.sampled_from([Limit(Concurrency(5)), Limit(Concurrency(5), lowest=1)]),
    ),
}
any_rate: Limits = st.one_of(*(limit for algorithm in RATES for limit in LIMITS[algorithm]))
any_slots: Limits = st.one_of(*LIMITS[CONCURRENCY])
