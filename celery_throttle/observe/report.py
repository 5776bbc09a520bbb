"""Reports: is a limit effective, too strict or too loose? With one piece of advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple

from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.limits.limit import UNLIMITED
from celery_throttle.limits.rate import Rate
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.records import (
    RECENT_SECONDS,
    RECORD_SECONDS,
    WEEK_RECORD_SECONDS,
    Record,
    divide_records,
    read_records,
)
from celery_throttle.observe.status.stored import (
    KeyPage,
    limits_in_force,
    list_keys,
    read_stored,
)
from celery_throttle.observe.status_text import waits_text
from celery_throttle.observe.text import amount, count, format_seconds
from celery_throttle.observe.totals import Totals, add_totals
from celery_throttle.observe.values import Change, LimitStatus, Period
from celery_throttle.operations.plan import Plan

#: Shares of the time at the limit: above the first a limit binds mostly, below the second hardly.
_MOSTLY, _HARDLY = 0.5, 0.01

#: The share of units for which the API may refuse a request, until the limit counts as too loose.
_REFUSED_BY_API = 0.001

#: A limit of which less was used in every period could be lower.
_LITTLE_USE = 0.5

#: Seconds of a limit's life that are too few for advice.
_TOO_YOUNG = 60.0

#: The most periods of a report, and the most keys.
_MAX_PERIODS, _MAX_KEYS = 96, 3

_REFUSALS = {
    "limit": "by the limit",
    "slots": "for lack of a slot",
    "paused": "by a pause",
    "keys": "by max-keys",
    "cost": "as too costly",
}
_DROPS = {
    "late": "by throttle_max_wait",
    "surplus": "by throttle_keep_waiting",
    "full": "by max-waiting",
    "keys": "by max-keys",
    "cost": "as too costly",
}


#: The actions of changes that put another definition in force.
_DEFINITIONS = frozenset({"code", "rules", "define", "undefine", "end"})


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a limit: the counts of a period of time, and whether the limit is right.

    Attributes:
        name: The name of the limit.
        clauses: The texts of the limits in force now.
        periods: Equal parts of the time, the oldest first; at most 96. The time before the limit
            came into force, and before it was recorded, is left out.
        totals: The counts of the whole time.
        use: The units granted and not refunded, divided by the units that the limit in force now
            allows in the time since it was last changed: its burst, and its rate for that time.
            None for a limit with slots, if all limits are shadow limits, if the limit has keys, and
            if it was changed in the last period.
        peak_use: The highest ``use`` of a period; None as for ``use``.
        at_limit: The share of the time in which the limit was reached, 0 to 1: the periods in which
            tasks were parked or dropped, calls were refused, or tasks waited at the end. Calls and
            tasks that only a pause held up do not count.
        top_keys: The encoded keys of a limit with keys for which the most tasks wait now, and how
            many wait; at most 3.
        verdict: ``"effective"``, ``"too strict"``, ``"too loose"``, ``"idle"`` (the limit was
            hardly ever reached) or ``"unknown"`` (nothing was counted, or for less than a minute).
        advice: The verdict as a sentence of advice, with the reason.
    """

    name: str
    clauses: tuple[str, ...]
    periods: tuple[Period, ...]
    totals: Totals
    use: float | None
    peak_use: float | None
    at_limit: float
    top_keys: tuple[tuple[str, int], ...]
    verdict: str
    advice: str


class Allowance(NamedTuple):
    """What a limit allows: its burst, and its rate from then on."""

    burst: float
    per_second: float

    def use(self, totals: Totals, seconds: float) -> float:
        """Return the share of it that was used in some seconds."""
        return (totals.granted - totals.refunded) / (self.burst + self.per_second * seconds)


class Recorded(NamedTuple):
    """What a report on a limit is made of."""

    status: LimitStatus  #: what is stored of the limit
    seconds: float  #: the time until now that was read
    records: list[list[Record]]  #: those of each shard
    keys: KeyPage  #: some with the most waiting tasks


def read_recorded(observer: Observer, name: str, seconds: float) -> Plan[Recorded]:
    """Return what a report on a limit is made of, of the last seconds.

    Raises UnknownLimitError, and as :func:`read_records`.
    """
    ref = LimitRef(name, None)
    yield from observer.check_known(ref)
    (status,) = yield from read_stored(observer, [ref])
    records = yield from read_records(observer, name, seconds)
    return Recorded(
        status, seconds, [records], (yield from list_keys(observer, name, "waiting", 0, _MAX_KEYS))
    )


def make_report(recorded: Recorded) -> Report:
    """Return what was counted of a limit, with advice."""
    status, seconds = recorded.status, recorded.seconds
    step = RECORD_SECONDS if seconds <= RECENT_SECONDS else WEEK_RECORD_SECONDS
    parts = min(_MAX_PERIODS, max(1, int(seconds / step)))
    since = status.origin.since if status.origin else None
    periods = divide_records(recorded.records, seconds, parts, since=since)
    top_keys = tuple((key, int(tasks)) for key, tasks in recorded.keys.keys[:_MAX_KEYS])
    totals = add_totals([period.totals for period in periods])
    length = sum(period.seconds for period in periods)
    at_limit = sum(period.seconds for period in periods if _is_at_limit(period)) / length
    use, peak_use = _measure_use(status, periods)
    verdict, advice = _advise(status, totals, at_limit, peak_use)
    if verdict != "unknown" and length < min(_TOO_YOUNG, seconds):
        verdict = "unknown"
        advice = (
            f"It was recorded for {format_seconds(length)} only, which is too short for advice."
        )
    return Report(
        name=status.name,
        clauses=status.clauses,
        periods=periods,
        totals=totals,
        use=use,
        peak_use=peak_use,
        at_limit=at_limit,
        top_keys=top_keys,
        verdict=verdict,
        advice=advice + _top_keys_advice(top_keys),
    )


def allowance_of(status: LimitStatus) -> Allowance | None:
    """Return the least that the clauses allow; None if that depends on keys or slots."""
    limits = limits_in_force(status)
    known = [
        Allowance(limit.burst, limit.rate.per_second)
        for limit in limits
        if isinstance(limit.rate, Rate) and limit.rate != UNLIMITED.rate
    ]
    if not limits or status.has_keys or len(known) < len(limits):
        return None
    return min(known, key=attrgetter("per_second"))


def rates_of(
    status: LimitStatus, changes: Sequence[Change], periods: Sequence[Period]
) -> list[float | None]:
    """Return the highest rate per second in force in each period; None if it is unknown.

    ``changes``: the newest ones of the limit, the newest first. Those of its keys do not count.
    """
    own = [one for one in changes if one.limit == status.name and one.action in _DEFINITIONS]
    rates: list[float | None] = []
    for period in reversed(periods):
        found = []
        while own and own[0].at > period.start:
            found += [allowance_of(status)] if own[0].at < period.end else []
            status = replace(status, clauses=tuple(filter(None, own.pop(0).old.split("; "))))
        found.append(allowance_of(status))
        known = [one.per_second for one in found if one]
        rates.append(max(known) if len(known) == len(found) else None)
    return rates[::-1]


def _measure_use(
    status: LimitStatus, periods: Sequence[Period]
) -> tuple[float | None, float | None]:
    """Return how much of a limit was used, and its peak; None if it is unknown."""
    if status.origin:  # what was counted before the last change, another limit has allowed
        since = status.origin.since - timedelta(seconds=RECORD_SECONDS)
        periods = [period for period in periods if period.start >= since]
    allowance = allowance_of(status)
    if not periods or allowance is None:
        return None, None
    counted = add_totals([period.totals for period in periods])
    peak = max(allowance.use(period.totals, period.seconds) for period in periods)
    return allowance.use(counted, sum(period.seconds for period in periods)), peak


def _top_keys_advice(top_keys: Sequence[tuple[str, int]]) -> str:
    """Return the sentence about the key for which the most tasks wait; empty if none wait."""
    if not top_keys:
        return ""
    key, tasks = top_keys[0]
    most = count(tasks, "task")
    return f" The key with the most waiting tasks is {format_key(key)!r}, with {most}."


def _is_at_limit(period: Period) -> bool:
    """Whether the limit, and not only a pause, refused calls or kept tasks waiting."""
    totals, refused = period.totals, dict(period.totals.refused)
    if period.waiting > period.paused or refused["limit"] + refused["slots"] > 0:
        return True
    return not period.paused and totals.parked + totals.drops > 0


def _advise(
    status: LimitStatus, totals: Totals, at_limit: float, peak_use: float | None
) -> tuple[str, str]:
    """Return the verdict, and the sentence of advice with its reason."""
    if not totals.granted + totals.refusals + totals.parked:
        return "unknown", "Nothing was counted in this time, so there is nothing to advise."
    api_refusals = count(totals.api_refusals, "request")
    if totals.api_refusals > max(1.0, _REFUSED_BY_API * totals.granted):
        return "too loose", (
            f"Lower it: the API refused {api_refusals} that the limit had allowed, "
            f"of {totals.granted:,.0f} units granted."
        )
    at = f"it was at the limit for {format_share(at_limit)} of the time"
    shadow = ""
    if _has_shadow(status.clauses):
        refused = count(totals.shadow_refused, "request")
        shadow = f" The shadow limit would have refused {refused} of those that passed."
    if at_limit > _MOSTLY and not totals.api_refusals:
        median, waits = totals.wait_quantile(0.5), ""
        if median is not None:
            waits = f", half of the tasks waited {format_seconds(median[0])} or more"
        return "too strict", (
            f"Raise it if the API allows more: {at}{waits}, and no refusal by the API was "
            f"reported.{shadow}"
        )
    if at_limit < _HARDLY and (peak_use is None or peak_use < _LITTLE_USE):
        peak = "" if peak_use is None else f", and at most {format_share(peak_use)} of it was used"
        return "idle", f"Keep it as a safeguard, or lower it to what is used: {at}{peak}.{shadow}"
    api = "no refusal by the API was reported"
    if totals.api_refusals:
        api = f"the API refused only {api_refusals}"
    return "effective", f"Leave it as it is: {at}, and {api}.{shadow}"


def _has_shadow(clauses: Sequence[str]) -> bool:
    return any(clause.endswith(" shadow") for clause in clauses)


def format_share(share: float) -> str:
    """Return a share in percent: ``"62%"``, ``"0.4%"``."""
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 10 or percent == 0 else f"{percent:.2g}%"  # noqa: PLR2004  # two digits


def advice_text(report: Report) -> str:
    """Return the verdict and the advice as sentences."""
    return f"{report.verdict.capitalize()}. {report.advice}"


def report_pairs(report: Report) -> list[tuple[str, str]]:
    """Return the figures of a report with their names, without its time and its charts."""
    totals = report.totals
    use = "" if report.use is None else f", {format_share(report.use)} of what it allows"
    removed = " by drain, move or drop" if totals.removed else ""
    shadow = f"{totals.shadow_refused:,} would have been refused"
    by_key = ", ".join(f"{format_key(key)} {tasks:,}" for key, tasks in report.top_keys)
    pairs = [
        ("units granted", f"{amount(totals.granted)}{use}"),
        ("at the limit", f"{format_share(report.at_limit)} of the time"),
        ("calls refused", refusals_text(totals)),
        ("refused by API", f"{totals.api_refusals:,}"),
        ("by the shadow", shadow if _has_shadow(report.clauses) else ""),
        ("tasks that waited", f"{totals.parked:,}"),
        ("waits", waits_text(totals) or "none from lines"),
        ("waiting now by key", by_key),
        ("tasks dropped", _reasons(totals.dropped, _DROPS)),
        ("tasks removed", f"{totals.removed:,}{removed}"),
        ("tasks replaced", f"{totals.replaced:,}" if totals.replaced else ""),
        ("tasks revoked", f"{totals.revoked:,}" if totals.revoked else ""),
        ("tasks discarded", f"{totals.discarded:,}" if totals.discarded else ""),
    ]
    return [(name, text) for name, text in pairs if text]


def refusals_text(totals: Totals) -> str:
    """Return how many calls were refused, and why: ``"12: 10 by the limit, 2 by a pause"``."""
    return _reasons(totals.refused, _REFUSALS)


def _reasons(counts: tuple[tuple[str, int], ...], texts: Mapping[str, str]) -> str:
    total = sum(number for _, number in counts)
    parts = [f"{number:,} {texts[reason]}" for reason, number in counts if number]
    return f"{total:,}: {', '.join(parts)}" if parts else f"{total:,}"
