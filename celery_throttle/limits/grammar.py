"""The words of a limit's text, and the fields of a limit that they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.rate import Concurrency, Rate, parse_lowest, parse_period, parse_whole

#: Each algorithm that ``using`` names, and the clauses that mean something to it.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "gcra": ("burst",),
    "token-bucket": ("burst",),
    "leaky-bucket": ("burst",),
    "leaky-queue": ("burst",),
    "fixed-window": ("from", "in", "at"),
    "sliding-log": (),
    "sliding-window": ("parts", "oldest"),
}
CONCURRENCY = "concurrency"
ADAPTIVE = "adaptive"

#: The same of every rate: one between two bounds is written in words of its own.
CLAUSES: Mapping[str, tuple[str, ...]] = {**ALGORITHMS, ADAPTIVE: ("burst", "latency")}
FIRST_REQUEST = "first-request"

#: The clauses that mean something to every algorithm, and to a number of slots.
BOUNDS = ("max-keys", "max-waiting", "outage")

#: What workers may do while the server of the limits cannot be reached.
OUTAGES = ("local", "open", "closed")

#: What may follow a number of slots, for messages.
WITH_SLOTS = f"allowed with it: {', '.join(BOUNDS)}"

_KEYWORDS = ("burst", "using", "from", "in", "at", "parts", "oldest", "latency", *BOUNDS)
_CLAUSE = re.compile(rf"\s({'|'.join(_KEYWORDS)})\b", re.ASCII | re.IGNORECASE)
_ADAPTIVE = re.compile(rf"{ADAPTIVE}\s+(?=\S)", re.ASCII | re.IGNORECASE)
_AT_ONCE = re.compile(r"(\S+)\s+at\s+once(?!\S)", re.ASCII | re.IGNORECASE)


def read(text: str) -> dict[str, Any]:
    """The fields that a limit's text gives; see :meth:`celery_throttle.limits.limit.Limit.parse`.

    Raises:
        LimitSyntaxError: it is not of that form.
        LimitValueError: a clause that means nothing to the algorithm, or a number out of range.
    """
    bare = text.strip()
    at_once = _AT_ONCE.match(bare)
    head, *rest = _CLAUSE.split(bare[at_once.end() :] if at_once else bare)
    keywords = [keyword.lower() for keyword in rest[::2]]
    clauses = dict(zip(keywords, map(str.strip, rest[1::2]), strict=True))
    if len(clauses) < len(keywords):
        raise LimitSyntaxError(f"a clause is given twice in {shown(text)}; allowed: once each")
    bounds = _take_bounds(clauses, text)
    adaptive = _ADAPTIVE.match(head)
    if adaptive:
        return {**_of_bounds(head[adaptive.end() :]), **_of_rate(clauses, text, ADAPTIVE), **bounds}
    if not at_once or head:
        return {"rate": Rate.parse(head.strip()), **_of_rate(clauses, text), **bounds}
    if clauses:
        keyword = next(iter(clauses))
        raise LimitValueError(f"'{keyword}' means nothing to '{at_once[0]}'; {WITH_SLOTS}")
    return {"rate": Concurrency(parse_whole("number of slots", at_once[1], text)), **bounds}


def _take_bounds(clauses: dict[str, str], text: str) -> dict[str, Any]:
    """Take the clauses that mean something to all out of the others."""
    bounds: dict[str, Any] = {}
    for keyword in BOUNDS:
        if keyword in clauses:
            told = clauses.pop(keyword)
            value = told.lower() if keyword == "outage" else parse_whole(keyword, told, text)
            bounds[keyword.replace("-", "_")] = value
    return bounds


def _of_bounds(text: str) -> dict[str, Any]:
    """The fields that ``"10..100/s"`` gives, of an adaptive limit."""
    lowest, rate = parse_lowest(text)
    return {"lowest": lowest, "rate": rate}


def _of_rate(clauses: dict[str, str], text: str, known: str | None = None) -> dict[str, Any]:
    """The fields that clauses give to an algorithm: one that is known, or that they name."""
    if known and "using" in clauses:
        raise LimitSyntaxError(f"{shown(text)} names two algorithms; allowed: one")
    algorithm = known or clauses.pop("using", "gcra").lower()
    for keyword in clauses:
        if keyword not in CLAUSES.get(algorithm, _KEYWORDS):
            raise meaningless(keyword, algorithm)
    fields: dict[str, Any] = {"algorithm": algorithm}
    for keyword in ("burst", "parts"):
        if keyword in clauses:
            fields[keyword] = parse_whole(keyword, clauses[keyword], text)
    if "latency" in clauses:
        fields["latency_us"] = parse_period(clauses["latency"], text)
    if "oldest" in clauses:
        fields["oldest"] = clauses["oldest"].lower()
    return {**fields, **_of_window(clauses, text)}


def _of_window(clauses: dict[str, str], text: str) -> dict[str, Any]:
    """The field that tells where windows begin, if anything does."""
    if "in" in clauses or "at" in clauses:
        if "from" in clauses:
            raise LimitSyntaxError(
                f"'from' and a time zone contradict each other in {shown(text)}; allowed: one"
            )
        zone, at = clauses.get("in", "UTC"), clauses.get("at", "00:00")
        return {"window": Calendar.parse(zone, at)}
    return {"window": clauses["from"].lower()} if "from" in clauses else {}


def meaningless(keyword: str, algorithm: str) -> LimitValueError:
    """The error for a clause that an algorithm does not have."""
    takers = ", ".join(name for name, keywords in CLAUSES.items() if keyword in keywords)
    return LimitValueError(f"'{keyword}' means nothing to {algorithm}; it is for {takers}")
