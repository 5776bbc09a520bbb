"""Reports in words, as pairs of a name and a value."""

from __future__ import annotations

from collections.abc import Mapping

from celery_throttle.observe.report.report import Report, format_share
from celery_throttle.observe.text import amount, format_seconds
from celery_throttle.observe.totals import Totals

_REFUSALS = {
    "limit": "by the limit",
    "slots": "for lack of a slot",
    "paused": "by a pause",
    "keys": "by max-keys",
    "cost": "as too costly",
}
_DROPS = {
    "late": "by throttle_max_wait",
    "full": "by max-waiting",
    "keys": "by max-keys",
    "cost": "as too costly",
}


def report_pairs(report: Report) -> list[tuple[str, str]]:
    """Return the figures of a report with their names, without its time and its charts."""
    return [*_use_pairs(report), *_task_pairs(report)]


def advice_text(report: Report) -> str:
    """Return the verdict and the advice as sentences."""
    return f"{report.verdict.capitalize()}. {report.advice}"


def refusals_text(totals: Totals) -> str:
    """Return how many calls were refused, and why: ``"12: 10 by the limit, 2 by a pause"``."""
    return _reasons(totals.refused, _REFUSALS)


def _use_pairs(report: Report) -> list[tuple[str, str]]:
    totals = report.totals
    use = "" if report.use is None else f", {format_share(report.use)} of what it allows"
    pairs = [
        ("units granted", f"{amount(totals.granted)}{use}"),
        ("at the limit", f"{format_share(report.at_limit)} of the time"),
        ("calls refused", refusals_text(totals)),
        ("refused by API", f"{totals.api_refusals:,}"),
    ]
    if any(clause.endswith(" shadow") for clause in report.clauses):
        pairs.append(("by the shadow", f"{totals.shadow_refused:,} would have been refused"))
    return pairs


def _task_pairs(report: Report) -> list[tuple[str, str]]:
    totals = report.totals
    waits = "none from lines"
    if report.median_wait is not None and report.long_wait is not None:
        half, most = format_seconds(report.median_wait), format_seconds(report.long_wait)
        waits = f"half up to {half}, 95% up to {most}"
    removed = f"{totals.removed:,}{' by drain, move or drop' if totals.removed else ''}"
    pairs = [
        ("tasks that waited", f"{totals.parked:,}"),
        ("waits", waits),
        ("tasks dropped", _reasons(totals.dropped, _DROPS)),
        ("tasks removed", removed),
    ]
    rare = [("tasks revoked", totals.revoked), ("tasks discarded", totals.discarded)]
    return [*pairs, *((name, f"{tasks:,}") for name, tasks in rare if tasks)]


def _reasons(counts: tuple[tuple[str, int], ...], texts: Mapping[str, str]) -> str:
    total = sum(number for _, number in counts)
    parts = [f"{number:,} {texts[reason]}" for reason, number in counts if number]
    return f"{total:,}: {', '.join(parts)}" if parts else f"{total:,}"
