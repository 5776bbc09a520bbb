"""How HTTP headers write numbers, times and lists. Each function parses one form.

Text of another form is a ``ValueError`` whose message completes "the header ...". All patterns
match in linear time, and callers bound the length of the text.
"""

from __future__ import annotations

import re
from email.utils import mktime_tz, parsedate_tz
from typing import NamedTuple

# A number that tells a time is a delay below the first bound (30 years), then seconds since the
# epoch, from the second on (in seconds, the year 5138) milliseconds, and no time from the third on.
MIN_EPOCH_SECONDS = 10.0**9
MIN_EPOCH_MILLISECONDS = 10.0**11
MAX_EPOCH_MILLISECONDS = 10.0**14

# 15 digits, as an Integer of structured fields (RFC 9651, 3.3.1). Parameters are ignored.
_NUMBER = re.compile(r"([0-9]{1,15})(?:\.[0-9]{1,15})?(?=[ \t]*(?:;|\Z))")
_USED_OF = re.compile(r"([0-9]{1,15})/([0-9]{1,15})")

# A duration as Go writes it, without units below a millisecond.
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(h|ms|m|s)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

# The outline of a date. Other text makes email.utils raise many kinds of errors.
_DATE = re.compile(r"[A-Z][a-z]{2,8},? [ A-Za-z0-9:-]{20,24}")

# Structured fields (RFC 9651): a List of Items or a Dictionary, without Inner Lists.
_KEY = r"[a-z*][a-z0-9_.*-]*"
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_OTHER = (
    r"[@-]?[0-9][0-9.]*|:[A-Za-z0-9+/=]*:|\?[01]|%\"[ !#-~]*\""
    r"|[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
)
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*({_KEY})(?:=({_STRING}|{_OTHER}))?")
_PARAMETERS = re.compile(rf"(?:{_PARAMETER.pattern})*")
_MEMBER = re.compile(rf"(?:({_KEY})=)?({_STRING}|{_OTHER})")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


class Member(NamedTuple):
    """A member of a List or a Dictionary. Values are as written: ``'"default"'``."""

    key: str  #: empty in a List
    value: str
    parameters: dict[str, str]


def parse_units(text: str) -> int:
    """Parse a number of units: ``"50"``. A fraction is dropped, as some APIs send ``"598.0"``."""
    return int(_match_number(text)[1])


def parse_remaining(text: str) -> int:
    """Parse used/limit into the units that remain: 8 for ``"32/40"``."""
    match = _USED_OF.fullmatch(text)
    if match is None:
        raise ValueError("is not used/limit")
    used, limit = map(int, match.groups())
    return max(limit - used, 0)


def parse_milliseconds(text: str) -> float:
    """Parse a delay in milliseconds; returns seconds."""
    return parse_seconds(text) / 1000


def parse_seconds(text: str) -> float:
    """Parse a delay in seconds: ``"120"``, ``"2.0"``."""
    return float(_match_number(text)[0])


def parse_date(text: str) -> float:
    """Parse an HTTP date of any form (RFC 9110, 5.6.7); returns seconds since the epoch."""
    fields = parsedate_tz(text) if _DATE.fullmatch(text) else None
    if fields is None:
        raise ValueError("is no date")
    try:
        return float(mktime_tz(fields))
    except (ValueError, OverflowError):
        raise ValueError("is no date of the calendar") from None


def parse_retry_after(text: str, sent: float) -> float:
    """Parse a ``Retry-After``, in seconds or as an HTTP date; returns seconds after ``sent``."""
    return parse_seconds(text) if _NUMBER.match(text) else _seconds_after(text, sent)


def parse_reset(text: str, sent: float) -> float:
    """Parse when a quota resets; returns seconds after ``sent``, negative if that is past.

    Forms: a delay in seconds, seconds or milliseconds since the epoch (the size of the number
    tells which), a duration such as ``"6m0s"``, an HTTP date.
    """
    if _DURATION.fullmatch(text):
        return sum(float(size) * _SECONDS[unit] for size, unit in _PART.findall(text))
    if not _NUMBER.match(text):
        return _seconds_after(text, sent)
    number = parse_seconds(text)
    if number >= MAX_EPOCH_MILLISECONDS:
        raise ValueError("is too large for a time")
    if number >= MIN_EPOCH_MILLISECONDS:
        return number / 1000 - sent
    return number - sent if number >= MIN_EPOCH_SECONDS else number


def parse_members(text: str) -> list[Member]:
    """Parse a structured field into its members."""
    found = []
    at = 0
    while True:
        member = _MEMBER.match(text, at)
        parameters = _PARAMETERS.match(text, member.end()) if member else None
        if member is None or parameters is None:
            raise ValueError("is no list of structured fields")
        found.append(Member(member[1] or "", member[2], dict(_PARAMETER.findall(parameters[0]))))
        if parameters.end() == len(text):
            return found
        comma = _COMMA.match(text, parameters.end())
        if comma is None:
            raise ValueError("is no list of structured fields")
        at = comma.end()


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
