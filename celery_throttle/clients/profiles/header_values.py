"""How answers write numbers, times and lists. Each function parses one form.

Text of another form is a ``ValueError`` whose message completes "the header ...". All patterns
match in linear time, and callers bound the length of the text. ``sent`` is the time of the answer,
in seconds since 1970; times are returned as seconds after it, negative if they are past.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import mktime_tz, parsedate_tz
from typing import Any, Literal

import http_sf

# A number that tells a time is a delay below the first bound (30 years), then seconds since the
# epoch, from the second on (in seconds, the year 5138) milliseconds, and no time from the third on.
MIN_EPOCH_SECONDS = 10.0**9
MIN_EPOCH_MILLISECONDS = 10.0**11
MAX_EPOCH_MILLISECONDS = 10.0**14

# 15 digits, as an Integer of structured fields (RFC 9651, 3.3.1). Parameters are ignored.
_NUMBER = re.compile(r"([0-9]{1,15})(?:\.[0-9]{1,15})?(?=[ \t]*(?:;|\Z))")
_USED_OF = re.compile(r"([0-9]{1,15})/([0-9]{1,15})")

# A duration as Go and protobuf write it, and with days.
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(d|h|ms|m|s|us|µs|ns)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_SECONDS = {
    "d": 86_400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 0.001,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}

# The outlines of dates. Other text makes email.utils raise many kinds of errors.
_DATE = re.compile(r"[A-Z][a-z]{2,8},? [ A-Za-z0-9:-]{20,24}")
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)

#: The parameters of a member of a structured field.
Parameters = dict[str, Any]


def parse_units(text: str) -> int:
    """Parse a number of units: ``"50"``. A fraction is dropped, as some APIs send ``"598.0"``."""
    return int(_match_number(text)[1])


def parse_limit(text: str) -> int:
    """Parse a number of units that may have policies behind it: ``"100, 100;w=60"``."""
    return parse_units(text.partition(",")[0])


def parse_used_of(text: str) -> tuple[int, int]:
    """Parse used/limit: ``"32/40"``."""
    match = _USED_OF.fullmatch(text)
    if match is None:
        raise ValueError("is not used/limit")
    return int(match[1]), int(match[2])


def parse_milliseconds(text: str, sent: float = 0.0) -> float:  # noqa: ARG001  # as parse_reset
    """Parse a delay in milliseconds; returns seconds."""
    return parse_seconds(text) / 1000


def parse_seconds(text: str) -> float:
    """Parse a delay in seconds: ``"120"``, ``"2.0"``."""
    return float(_match_number(text)[0])


def parse_duration(text: str, sent: float = 0.0) -> float:  # noqa: ARG001  # as parse_reset
    """Parse a duration such as ``"6m0s"``, ``"1d2h"`` or ``"14.3s"``; returns seconds."""
    if not _DURATION.fullmatch(text):
        raise ValueError("is no duration")
    return sum(float(size) * _SECONDS[unit] for size, unit in _PART.findall(text))


def parse_date(text: str) -> float:
    """Parse an HTTP date of any form (RFC 9110, 5.6.7); returns seconds since the epoch."""
    fields = parsedate_tz(text) if _DATE.fullmatch(text) else None
    if fields is None:
        raise ValueError("is no date")
    try:
        return float(mktime_tz(fields))
    except (ValueError, OverflowError):
        raise ValueError("is no date of the calendar") from None


def parse_rfc_3339(text: str) -> float:
    """Parse a time of RFC 3339: ``"2026-11-25T18:49:59.5Z"``; returns seconds since the epoch."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("is no time of RFC 3339")
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{offset}").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise ValueError("is no time of the calendar") from None
    return moment.timestamp() + float(fraction or 0)


def parse_retry_after(text: str, sent: float) -> float:
    """Parse a ``Retry-After``, in seconds or as an HTTP date."""
    return parse_seconds(text) if _NUMBER.match(text) else _seconds_after(text, sent)


def parse_reset(text: str, sent: float) -> float:
    """Parse when a quota resets.

    Forms: a delay in seconds, seconds or milliseconds since the epoch (the size of the number
    tells which), a duration such as ``"6m0s"``, an HTTP date, RFC 3339.
    """
    if _DURATION.fullmatch(text):
        return parse_duration(text)
    if _RFC_3339.fullmatch(text):
        return parse_rfc_3339(text) - sent
    if not _NUMBER.match(text):
        return _seconds_after(text, sent)
    number = parse_seconds(text)
    if number >= MAX_EPOCH_MILLISECONDS:
        raise ValueError("is too large for a time")
    if number >= MIN_EPOCH_MILLISECONDS:
        return number / 1000 - sent
    return number - sent if number >= MIN_EPOCH_SECONDS else number


def parse_list(text: str) -> list[tuple[Any, Parameters]]:
    """Parse a structured field (RFC 9651) that is a list of items, each with its parameters."""
    return list(_parse_field(text, "list"))


def parse_dictionary(text: str) -> dict[str, Any]:
    """Parse a structured field (RFC 9651) that is a dictionary of items."""
    return {key: value for key, (value, _) in dict(_parse_field(text, "dictionary")).items()}


def _parse_field(text: str, form: Literal["list", "dictionary"]) -> Any:
    try:
        return http_sf.parse(text.encode("ascii"), tltype=form)
    except (ValueError, UnicodeError):
        raise ValueError("is no structured field") from None


def _match_number(text: str) -> re.Match[str]:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError("is no number of at most 15 digits")
    return match


def _seconds_after(text: str, sent: float) -> float:
    try:
        return parse_date(text) - sent
    except ValueError:
        raise ValueError("is neither a number of at most 15 digits nor a date") from None
