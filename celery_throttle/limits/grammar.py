"""The grammar of a limit's text, and the fields of a limit that each clause sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.duration import parse_duration
from celery_throttle.limits.rate import Concurrency, Rate, parse_whole

#: Each algorithm that ``using`` selects, and the clauses that apply to it.
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

#: The same for every rate, adaptive ones included, which have a syntax of their own.
CLAUSES: Mapping[str, tuple[str, ...]] = {**ALGORITHMS, ADAPTIVE: ("burst", "latency")}
FIRST_REQUEST = "first-request"
COMMON_CLAUSES = ("max-keys", "max-waiting", "outage")

#: The clause of a limit that only counts what it would refuse, and the algorithms that it is for.
SHADOW = "shadow"
SHADOW_ALGORITHMS = tuple(name for name in ALGORITHMS if name != "leaky-queue")

#: What workers do with tasks of the limit during an outage of the server.
OUTAGE_MODES = ("local", "open", "closed")

#: For messages about a number of slots.
SLOT_CLAUSES = f"allowed with it: {', '.join(COMMON_CLAUSES)}"

_KEYWORDS = dict.fromkeys(["using", *chain(*CLAUSES.values()), SHADOW, *COMMON_CLAUSES])
_CLAUSE = re.compile(rf"\s({'|'.join(_KEYWORDS)})\b", re.ASCII | re.IGNORECASE)
_ADAPTIVE = re.compile(rf"{ADAPTIVE}\s+(?=\S)", re.ASCII | re.IGNORECASE)
_AT_ONCE = re.compile(
    rf"({ADAPTIVE}\s+)?(\S+(?:\s*\.\.\s*\S+)?)\s+at\s+once(?!\S)", re.ASCII | re.IGNORECASE
)


def parse_fields(text: str) -> dict[str, Any]:
    """Parse a limit's text to fields. Raises as ``Limit.parse``."""
    bare = text.strip()
    at_once = _AT_ONCE.match(bare)
    head, *rest = _CLAUSE.split(bare[at_once.end() :] if at_once else bare)
    keywords = [keyword.lower() for keyword in rest[::2]]
    clauses = dict(zip(keywords, map(str.strip, rest[1::2]), strict=True))
    if len(clauses) < len(keywords):
        raise LimitSyntaxError(f"a clause is given twice in {shown(text)}; allowed: once each")
    own = [keyword for keyword in clauses if keyword not in (SHADOW, *COMMON_CLAUSES)]
    if at_once and not head:
        wrong = [keyword for keyword in own if not at_once[1] or keyword != "latency"]
        if wrong:
            allowed = f"{SLOT_CLAUSES}{', latency' * bool(at_once[1])}"
            raise LimitValueError(f"'{wrong[0]}' does not apply to '{at_once[0]}'; {allowed}")
        return {**_slot_fields(at_once, text), **_clause_fields(clauses, text)}
    fields = _rate_fields(head, clauses, text)
    for keyword in own:
        if keyword not in ("using", *CLAUSES.get(fields["algorithm"], _KEYWORDS)):
            raise wrong_clause_error(keyword, fields["algorithm"])
    return {**fields, **_clause_fields(clauses, text)}


def _rate_fields(head: str, clauses: dict[str, str], text: str) -> dict[str, Any]:
    """Return the fields of a rate, and its algorithm."""
    adaptive = _ADAPTIVE.match(head)
    if not adaptive:
        return {"rate": Rate.parse(head.strip()), "algorithm": clauses.get("using", "gcra").lower()}
    if "using" in clauses:
        raise LimitSyntaxError(f"{shown(text)} names two algorithms; allowed: one")
    lowest, separator, highest = head[adaptive.end() :].partition("..")
    if not separator:
        raise LimitSyntaxError(
            f"{shown(lowest)} is not a range of rates; allowed: '<lowest>..<highest>/<period>', "
            "such as 'adaptive 10..100/s'"
        )
    count = parse_whole("lowest count", lowest.strip(), text)
    return {"lowest": count, "rate": Rate.parse(highest), "algorithm": ADAPTIVE}


def _slot_fields(at_once: re.Match[str], text: str) -> dict[str, Any]:
    """Return the fields of a number of slots, or of a range of numbers."""
    if not at_once[1]:
        return {"rate": Concurrency(parse_whole("number of slots", at_once[2], text))}
    lowest, separator, highest = at_once[2].partition("..")
    if not separator:
        raise LimitSyntaxError(
            f"{shown(at_once[2])} is not a range of numbers of slots; allowed: "
            "'<lowest>..<highest> at once', such as 'adaptive 2..50 at once'"
        )
    return {
        "lowest": parse_whole("lowest number of slots", lowest.strip(), text),
        "rate": Concurrency(parse_whole("number of slots", highest.strip(), text)),
    }


def _clause_fields(clauses: Mapping[str, str], text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for keyword, value in clauses.items():
        if keyword in ("burst", "parts", "max-keys", "max-waiting"):
            fields[keyword.replace("-", "_")] = parse_whole(keyword, value, text)
        elif keyword in ("oldest", "outage"):
            fields[keyword] = value.lower()
        elif keyword == "latency":
            fields["latency_us"] = parse_duration(value)
        elif keyword == "from":
            fields["window"] = value.lower()
        elif keyword == SHADOW:
            if value:
                raise LimitSyntaxError(f"'{SHADOW}' has no value; remove {shown(value)} behind it")
            fields["shadow"] = True
    if "in" in clauses or "at" in clauses:
        if "from" in clauses:
            raise LimitSyntaxError(
                f"'from' and a time zone contradict each other in {shown(text)}; allowed: one"
            )
        fields["window"] = Calendar.parse(clauses.get("in", "UTC"), clauses.get("at", "00:00"))
    return fields


def wrong_clause_error(keyword: str, algorithm: str) -> LimitValueError:
    """Return the error for a clause that does not apply to an algorithm."""
    algorithms = ", ".join(name for name, keywords in CLAUSES.items() if keyword in keywords)
    return LimitValueError(f"'{keyword}' does not apply to {algorithm}; it is for {algorithms}")


# Suggestions for text that is not a limit, such as "10 per second" or "10 concurrent".

#: Separates several limits in one text.
_SEPARATOR = re.compile(r"\s*(?:[,;&+]|\band\b)\s*", re.IGNORECASE)

#: The comma of "1,000".
_THOUSANDS_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

#: The comma of "100/s, burst=20": what follows is no limit of its own.
_CLAUSE_COMMA = re.compile(
    r"\s*[,;]\s*(?=(?:burst|using|outage|shadow|max-waiting|max-keys|latency)\b)", re.IGNORECASE
)

_UNIT = r"(?:req(?:uest)?s?|calls?|tasks?|jobs?|times|messages?|units?|tokens?|hits|ops?|r)"
_CONCURRENCY = (
    r"(?:concurren(?:t|tly|cy)|parallel|in\s+parallel|simultaneous(?:ly)?|slots?|workers?|threads?"
    r"|connections?|at\s+(?:a|one|the\s+same)\s+time)"
)

#: Rewrites of common spellings, in this order. A result that is not a limit is not suggested.
_REWRITES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"^(?:max(?:imum)?|at\s+most|up\s+to|limit)[\s:]+", ""),
        (r"\s*[=:]\s*", " "),  # burst=10
        (r"\bburst(?=\d)", "burst "),  # burst10
        (r"(?<=\d)(?=at once$)", " "),  # 10at once
        (rf"^{_CONCURRENCY}\s+(?:of\s+)?(\d+)$", r"\1 at once"),  # concurrency 10
        (rf"^(\d+)\s*{_CONCURRENCY}(?:\s+{_UNIT})?$", r"\1 at once"),
        (r"^(\d+)\s*[rqtco]p([smhd])\b", r"\1/\2"),  # 10rps
        (rf"^(\d+)\s*{_UNIT}\b", r"\1"),  # 10 requests/s
        (r"\s+(?:(?:per|every|each|in)\s+)?(?:an?|each|every|per)\s+(?=\d|[a-z])", "/"),
        (r"\b(\d+)\s+burst$", r"burst \1"),
        (r"^0*(\d*)\.(\d)\s*/\s*(?=[a-z])", r"\1\2/10"),  # 4.9/s
    )
)


def suggest(text: str, is_limit: Callable[[str], bool]) -> str | list[str] | None:
    """Return the limit that a text may mean, a list of several, or None."""
    plain = _CLAUSE_COMMA.sub(" ", _THOUSANDS_COMMA.sub("", text.strip()))
    limits = [_rewrite(part) for part in _SEPARATOR.split(plain)]
    if not all(map(is_limit, limits)):
        return None
    return limits[0] if len(limits) == 1 else limits


def _rewrite(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text
