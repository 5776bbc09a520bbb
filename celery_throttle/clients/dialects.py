"""Dialects: how HTTP headers write numbers, times and lists. Text in, plain values out.

Text that is not of its form is a ``ValueError``, which says in a few words what it is not. None of
the patterns below takes more than linear time, and text is cut to size before it comes here.
"""

from __future__ import annotations

import re
from email.utils import mktime_tz, parsedate_tz
from typing import NamedTuple

#: Below it, a number that tells a time is a delay: 30 years. From it on, seconds since the epoch.
LEAST_EPOCH = 10.0**9

#: From it on, the number is milliseconds since the epoch: in seconds, it is the year 5138.
LEAST_EPOCH_MS = 10.0**11

#: From it on, the number is no time: in milliseconds, it is the year 5138 again.
NO_EPOCH = 10.0**14

# Of 15 digits, as an Integer of structured fields (RFC 9651, 3.3.1). Parameters are to be ignored.
_NUMBER = re.compile(r"([0-9]{1,15})(?:\.[0-9]{1,15})?(?=[ \t]*(?:;|\Z))")
_USED_OF = re.compile(r"([0-9]{1,15})/([0-9]{1,15})")

# As Go writes a duration, without what is finer than a millisecond.
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(h|ms|m|s)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

# The outline of a date only. Other text has led email.utils to errors of many kinds.
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
_NEXT = re.compile(r"[ \t]*,[ \t]*")


class Member(NamedTuple):
    """A member of a List or a Dictionary. Values are as they are written: ``'"default"'``."""

    key: str  #: empty in a List
    value: str
    parameters: dict[str, str]


def whole(text: str) -> int:
    """A number of units: ``"50"``; a fraction is dropped, as some write ``"598.0"``."""
    return int(_number(text)[1])


def left_of(text: str) -> int:
    """What is left, told as used/limit: 8 for ``"32/40"``."""
    match = _USED_OF.fullmatch(text)
    if match is None:
        raise ValueError("is not used/limit")
    used, limit = map(int, match.groups())
    return max(limit - used, 0)


def milliseconds(text: str) -> float:
    """A delay in milliseconds, in seconds."""
    return seconds(text) / 1000


def seconds(text: str) -> float:
    """A delay in seconds: ``"120"``, ``"2.0"``."""
    return float(_number(text)[0])


def date(text: str) -> float:
    """An HTTP date in any of its three forms (RFC 9110, 5.6.7), in seconds since the epoch."""
    fields = parsedate_tz(text) if _DATE.fullmatch(text) else None
    if fields is None:
        raise ValueError("is no date")
    try:
        return float(mktime_tz(fields))
    except (ValueError, OverflowError):
        raise ValueError("is no date that a calendar has") from None


def retry_after(text: str, sent: float) -> float:
    """The delay that a ``Retry-After`` tells: in seconds, or as an HTTP date."""
    return seconds(text) if _NUMBER.match(text) else _since(text, sent)


def reset(text: str, sent: float) -> float:
    """Seconds from ``sent`` until a quota has more, below 0 if that is past.

    A number tells by its size what it is: a delay in seconds below ``LEAST_EPOCH``, then seconds
    since the epoch, then milliseconds since the epoch. Else it is a duration such as ``"6m0s"``,
    or an HTTP date.
    """
    if _DURATION.fullmatch(text):
        return sum(float(size) * _SECONDS[unit] for size, unit in _PART.findall(text))
    if not _NUMBER.match(text):
        return _since(text, sent)
    number = seconds(text)
    if number >= NO_EPOCH:
        raise ValueError("is farther than any time")
    if number >= LEAST_EPOCH_MS:
        return number / 1000 - sent
    return number - sent if number >= LEAST_EPOCH else number


def members(text: str) -> list[Member]:
    """The members of a structured field; all of them, or it is malformed."""
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
        comma = _NEXT.match(text, parameters.end())
        if comma is None:
            raise ValueError("is no list of structured fields")
        at = comma.end()


def _number(text: str) -> re.Match[str]:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError("is no number of at most 15 digits")
    return match


def _since(text: str, sent: float) -> float:
    try:
        return date(text) - sent
    except ValueError:
        raise ValueError("is neither a number of at most 15 digits nor a date") from None
