"""Reads the information about the limits of an API from the headers of its responses.

:func:`read` understands these headers. If several of them give a quota in the same unit, the first
one in this order counts:

1. ``RateLimit``, with the units in ``RateLimit-Policy``: drafts 07 to 10 of the IETF's
   draft-ietf-httpapi-ratelimit-headers. From draft 08 on, each member is a separate quota.
2. ``RateLimit-Remaining`` and ``RateLimit-Reset``: drafts 00 to 06; and GitLab, with an epoch.
3. ``X-RateLimit-Remaining-Requests``, ``X-RateLimit-Remaining-Tokens`` and their ``Reset`` twins:
   OpenAI, Azure, Groq.
4. ``X-RateLimit-Remaining`` and ``X-RateLimit-Reset``: GitHub, Discord, Reddit and most others.
5. ``X-Rate-Limit-Remaining`` and ``X-Rate-Limit-Reset``: X (Twitter).
6. ``X-Shopify-Shop-Api-Call-Limit``: used/limit, without a reset.

``Retry-After`` counts with status 429, 503 and 403 only. ``Retry-After-Ms`` and
``X-Ms-Retry-After-Ms`` (OpenAI, Azure) take precedence. Stripe documents no header about quotas, so
only its refusals count. Headers that state the limit itself (``X-RateLimit-Limit``) are not read.

Epochs and dates are compared with the ``Date`` of the response, so the clock of this machine may be
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from celery_throttle.clients import header_values
from celery_throttle.errors import shown

#: Longer delays count as this many seconds: an API must not stop its callers for a day, or by
#: mistake for a year. After an hour they call again.
MAX_DELAY_SECONDS = 3600.0

#: A time that is past by more than this gets a warning: clocks differ, and responses take time.
CLOCK_SKEW_SECONDS = 60.0

#: Longer headers are ignored. The examples of the drafts have less than a hundred characters.
MAX_HEADER_CHARACTERS = 1000

#: The unit of a quota that names none.
REQUESTS = "requests"

_RETRY_AFTER_MS = ("retry-after-ms", "x-ms-retry-after-ms")

# Headers of the remaining quota and of its reset, and the unit, by precedence.
_PAIRS = (
    ("ratelimit-remaining", "ratelimit-reset", REQUESTS),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", REQUESTS),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset", REQUESTS),
    ("x-rate-limit-remaining", "x-rate-limit-reset", REQUESTS),
)
_SHOPIFY = "x-shopify-shop-api-call-limit"

# A response without any of these says nothing.
_REQUIRED = frozenset(
    ("retry-after", *_RETRY_AFTER_MS, "ratelimit", *(pair[0] for pair in _PAIRS), _SHOPIFY)
)
_READ = _REQUIRED | {"date", "ratelimit-policy", *(pair[1] for pair in _PAIRS)}

# GitHub refuses by 403 as well, with a Retry-After.
_REFUSALS = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.FORBIDDEN,
)

_T = TypeVar("_T")


class ApiQuota(NamedTuple):
    """The remaining units of one quota of an API.

    Attributes:
        remaining: Whole units, 0 to 10**15 - 1.
        reset_after: Seconds from the response to the reset of the quota; None if unknown.
        unit: The unit that the quota counts, such as ``"requests"`` or ``"tokens"``; default
            ``"requests"``.
    """

    remaining: int
    reset_after: float | None
    unit: str = REQUESTS


@dataclass(frozen=True, slots=True)
class RateLimitInfo:
    """The information about limits in one response.

    Attributes:
        refused: Whether the status is 429, or 503 or 403 with a valid ``Retry-After``.
        retry_after: Seconds to wait, 0 to 3600; None if unknown.
        quotas: The remaining quotas. If several headers give a quota in the same unit, the first of
            them in the list above counts.
        warnings: A message for each header that was ignored, or whose value was cut to its range.
    """

    refused: bool
    retry_after: float | None
    quotas: tuple[ApiQuota, ...]
    warnings: tuple[str, ...]


def read(status: int, headers: Mapping[str, str], now: float) -> RateLimitInfo:
    """Read the information about limits in a response. Malformed headers never raise an error.

    Args:
        status: The status code.
        headers: The header fields of any client, or a plain dict; their names may be in any case.
            The values of a repeated field are joined with commas (RFC 9110, section 5.3).
        now: The time of this machine in seconds since 1970, for a response without ``Date``.

    Example:
        ::

            info = read(response.status, response.headers, time.time())
            if info.refused:
                throttle["stripe"].learn(Feedback(refused=True, stop=info.retry_after))
    """
    # Most responses have no such header, and need not wait for more than this.
    if _REQUIRED.isdisjoint(map(str.lower, headers)):
        return RateLimitInfo(status == HTTPStatus.TOO_MANY_REQUESTS, None, (), ())
    reader = _Reader(_fields(headers), now)
    wait = None
    if status in _REFUSALS:
        wait = reader.retry_after()
    refused = status == HTTPStatus.TOO_MANY_REQUESTS or wait is not None
    return RateLimitInfo(refused, wait, tuple(reader.quotas()), tuple(reader.warnings.values()))


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in headers.items():
        key = name.lower()
        if key in _READ:
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


class _Field(NamedTuple):
    """A header, or a part of one; ``text`` is None if it is absent."""

    header: str
    text: str | None


class _Reader:
    """Reads one response and collects warnings."""

    def __init__(self, fields: dict[str, str], now: float) -> None:
        self.warnings: dict[str, str] = {}  # by header, the first of each
        self._fields = fields
        self._sent = self._date(now)

    def retry_after(self) -> float | None:
        for name in _RETRY_AFTER_MS:
            wait = self._delay(self._field(name), header_values.parse_milliseconds)
            if wait is not None:
                return wait
        parse = partial(header_values.parse_retry_after, sent=self._sent)
        return self._delay(self._field("retry-after"), parse)

    def quotas(self) -> list[ApiQuota]:
        found: list[ApiQuota] = []
        for quotas in (self._ratelimit(), *map(self._pair, _PAIRS), self._shopify()):
            units = {quota.unit for quota in found}
            found += [quota for quota in quotas if quota.unit not in units]
        return found

    def _ratelimit(self) -> list[ApiQuota]:
        members = self._value(self._field("ratelimit"), header_values.parse_members) or []
        if any(member.key for member in members):  # draft 07: limit=100, remaining=50, reset=5
            values = {member.key: member.value for member in members}
            return self._member(values.get("remaining"), values.get("reset"), REQUESTS)
        units = self._units() if members else {}
        found: list[ApiQuota] = []
        for member in members:
            remaining, reset = member.parameters.get("r"), member.parameters.get("t")
            if remaining is None:
                self._warn(_Field("ratelimit", member.value), "has no r=")
            found += self._member(remaining, reset, units.get(member.value, REQUESTS))
        return found

    def _units(self) -> dict[str, str]:
        """Return the units of the policies that name one."""
        policies = self._value(self._field("ratelimit-policy"), header_values.parse_members) or []
        units = {policy.value: policy.parameters.get("qu", "").strip('"') for policy in policies}
        return {policy: unit for policy, unit in units.items() if unit}

    def _member(self, remaining: str | None, reset: str | None, unit: str) -> list[ApiQuota]:
        return self._quota(_Field("ratelimit", remaining), _Field("ratelimit", reset), unit)

    def _pair(self, pair: tuple[str, str, str]) -> list[ApiQuota]:
        remaining, reset, unit = pair
        return self._quota(self._field(remaining), self._field(reset), unit)

    def _shopify(self) -> list[ApiQuota]:
        remaining = self._value(self._field(_SHOPIFY), header_values.parse_remaining)
        return [] if remaining is None else [ApiQuota(remaining, None)]

    def _quota(self, field: _Field, reset: _Field, unit: str) -> list[ApiQuota]:
        remaining = self._value(field, header_values.parse_units)
        if remaining is None:
            return []
        parse = partial(header_values.parse_reset, sent=self._sent)
        return [ApiQuota(remaining, self._delay(reset, parse), unit)]

    def _date(self, now: float) -> float:
        """Return when the response was sent, by its sender's clock; ``now`` if that is unset."""
        field = self._field("date")
        sent = self._value(field, header_values.parse_date)
        if sent is not None and sent < header_values.MIN_EPOCH_SECONDS:
            self._warn(field, "is no time of today")
            return now
        return now if sent is None else sent

    def _field(self, name: str) -> _Field:
        text = self._fields.get(name)
        if text is None:
            return _Field(name, None)
        if len(text) > MAX_HEADER_CHARACTERS:
            self._warn(_Field(name, text), f"has more than {MAX_HEADER_CHARACTERS} characters")
            return _Field(name, None)
        return _Field(name, text.strip(" \t"))

    def _value(self, field: _Field, parse: Callable[[str], _T]) -> _T | None:
        if field.text is None:
            return None
        try:
            return parse(field.text)
        except ValueError as error:
            self._warn(field, str(error))
            return None

    def _delay(self, field: _Field, parse: Callable[[str], float]) -> float | None:
        delay = self._value(field, parse)
        if delay is None:
            return None
        if delay > MAX_DELAY_SECONDS:
            self._warn(field, f"is {delay:.0f} s ahead", f"taken as {MAX_DELAY_SECONDS:.0f} s")
        elif delay < -CLOCK_SKEW_SECONDS:
            self._warn(field, f"is {-delay:.0f} s ago", "taken as 0 s")
        return min(max(delay, 0.0), MAX_DELAY_SECONDS)

    def _warn(self, field: _Field, reason: str, effect: str = "ignored") -> None:
        text = (field.text or "")[:MAX_HEADER_CHARACTERS]
        self.warnings.setdefault(field.header, f"{field.header}: {shown(text)} {reason}, {effect}")
