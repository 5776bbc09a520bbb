"""Reports: is a limit effective, too strict or too loose? With one piece of advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import UNLIMITED
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import parse_limits
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.report.periods import RECENT_SECONDS, seconds_between
from celery_throttle.observe.report.records import (
    RECORD_SECONDS,
    WEEK_RECORD_SECONDS,
    check_recorded,
    read_periods,
)
from celery_throttle.observe.status.stored import read_stored
from celery_throttle.observe.text import count, format_seconds
from celery_throttle.observe.totals import Totals, add_totals
from celery_throttle.observe.values import LimitStatus, Period
from celery_throttle.operations.plan import Plan

#: Shares of the time at the limit: above the first a limit binds mostly, below the second hardly.
_MOSTLY, _HARDLY = 0.5, 0.01

#: The share of units for which the API may refuse a request, until the limit counts as too loose.
_REFUSED_BY_API = 0.001

#: A limit of which less was used in every period could be lower.
_LITTLE_USE = 0.5


#: The most periods of a report.
_MAX_PERIODS = 96


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a limit: the counts of a period of time, and whether the limit is right.

    Attributes:
        name: The name of the limit.
        clauses: The texts of the limits in force now.
        periods: Equal parts of the time, the oldest first; at most 96.
        totals: The counts of the whole time.
        use: The units granted and not refunded, divided by the units that the limit in force now
            allows in that time: its burst, and its rate for the whole time. None for a limit with
            slots, if all limits are shadow limits, and if the limit has keys.
        peak_use: The highest ``use`` of a period; None as for ``use``.
        at_limit: The share of the time in which the limit was reached, 0 to 1: the periods in which
            tasks were parked or dropped, calls were refused, or tasks waited at the end.
        median_wait: The median of the waits of claimed tasks, in seconds; None if no task was
            claimed.
        long_wait: The 95th percentile of the waits of claimed tasks, in seconds; None if no task
            was claimed.
        verdict: ``"effective"``, ``"too strict"``, ``"too loose"``, ``"idle"`` (the limit was
            hardly ever reached) or ``"unknown"`` (nothing was counted).
        advice: The verdict as a sentence of advice, with the reason.
    """

    name: str
    clauses: tuple[str, ...]
    periods: tuple[Period, ...]
    totals: Totals
    use: float | None
    peak_use: float | None
    at_limit: float
    median_wait: float | None
    long_wait: float | None
    verdict: str
    advice: str


def read_report(observer: Observer, name: str, seconds: float) -> Plan[Report]:
    """Return what was counted of a limit in the last seconds, with advice.

    Raises UnknownLimitError, and as :func:`read_periods`.
    """
    ref = LimitRef(name, None)
    check_recorded(seconds)
    yield from observer.check_known(ref)
    (status,) = yield from read_stored(observer, [ref])
    step = RECORD_SECONDS if seconds <= RECENT_SECONDS else WEEK_RECORD_SECONDS
    parts = min(_MAX_PERIODS, max(1, int(seconds / step)))
    return make_report(status, (yield from read_periods(observer, name, seconds, parts)))


def make_report(status: LimitStatus, periods: Sequence[Period]) -> Report:
    """Return the report of a limit, of what was counted in the periods."""
    totals = add_totals([period.totals for period in periods])
    allowance = allowance_of(status)
    uses = [allowance.use(one.totals, seconds_between(one)) for one in periods] if allowance else []
    seconds = sum(map(seconds_between, periods))
    at_limit = sum(seconds_between(one) for one in periods if _is_at_limit(one)) / seconds
    peak_use = max(uses, default=None)
    verdict, advice = _advise(status, totals, at_limit, peak_use)
    return Report(
        name=status.name,
        clauses=status.clauses,
        periods=tuple(periods),
        totals=totals,
        use=allowance.use(totals, seconds) if allowance else None,
        peak_use=peak_use,
        at_limit=at_limit,
        median_wait=totals.wait_quantile(0.5),
        long_wait=totals.wait_quantile(0.95),
        verdict=verdict,
        advice=advice,
    )


class Allowance(NamedTuple):
    """What a limit allows: its burst, and its rate from then on."""

    burst: float
    per_second: float

    def use(self, totals: Totals, seconds: float) -> float:
        """Return the share of it that was used in some seconds."""
        return (totals.granted - totals.refunded) / (self.burst + self.per_second * seconds)


def allowance_of(status: LimitStatus) -> Allowance | None:
    """Return the least that the clauses allow; None if that depends on keys or slots."""
    if not status.clauses or status.has_keys:
        return None
    limits = parse_limits(list(status.clauses), status.name)
    known = [
        Allowance(limit.burst, limit.rate.count * MICROSECONDS / limit.rate.period_us)
        for limit in limits
        if isinstance(limit.rate, Rate) and limit.rate != UNLIMITED.rate
    ]
    if len(known) < len(limits):
        return None
    return min(known, key=attrgetter("per_second"))


def _is_at_limit(period: Period) -> bool:
    """Whether tasks were parked or dropped, calls were refused, or tasks waited at the end."""
    totals, refused = period.totals, dict(period.totals.refused)
    refusals = refused["limit"] + refused["slots"] + totals.drops
    return period.waiting > 0 or totals.parked + refusals > 0


def _advise(
    status: LimitStatus, totals: Totals, at_limit: float, peak_use: float | None
) -> tuple[str, str]:
    """Return the verdict, and the sentence of advice with its reason."""
    asked = totals.granted + totals.refusals + totals.parked
    if not asked:
        return "unknown", "Nothing was counted in this time, so there is nothing to advise."
    share = format_share(at_limit)
    if totals.api_refusals > max(1.0, _REFUSED_BY_API * totals.granted):
        refused = count(totals.api_refusals, "request")
        return "too loose", (
            f"Lower it: the API refused {refused} that the limit had allowed, "
            f"of {totals.granted:,.0f} units granted."
        )
    shadow = _shadow_advice(status, totals)
    if at_limit > _MOSTLY and not totals.api_refusals:
        median = totals.wait_quantile(0.5)
        waits = (
            "" if median is None else f", half of the tasks waited {format_seconds(median)} or more"
        )
        return "too strict", (
            f"Raise it if the API allows more: it was at the limit for {share} of the time{waits}, "
            f"and no refusal by the API was reported.{shadow}"
        )
    if at_limit < _HARDLY and (peak_use is None or peak_use < _LITTLE_USE):
        peak = "" if peak_use is None else f", and at most {format_share(peak_use)} of it was used"
        return "idle", (
            f"Keep it as a safeguard, or lower it to what is used: it was at the limit for {share} "
            f"of the time{peak}.{shadow}"
        )
    api = (
        "and no refusal by the API was reported"
        if not totals.api_refusals
        else f"and the API refused only {count(totals.api_refusals, 'request')}"
    )
    return "effective", (
        f"Leave it as it is: it was at the limit for {share} of the time, {api}.{shadow}"
    )


def _shadow_advice(status: LimitStatus, totals: Totals) -> str:
    if not any(clause.endswith(" shadow") for clause in status.clauses):
        return ""
    refused = count(totals.shadow_refused, "request")
    return f" The shadow limit would have refused {refused} of those that passed."


def format_share(share: float) -> str:
    """Return a share in percent: ``"62%"``, ``"0.4%"``."""
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 10 or percent == 0 else f"{percent:.2g}%"  # noqa: PLR2004  # two digits
