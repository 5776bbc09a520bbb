"""Answers: what an HTTP answer says about the limits of the API that gave it.

``read`` takes the status, the headers and the time; it does no I/O and never raises, whatever the
text. Understood are, and where one unit is told in several forms, the first of them counts:

1. ``RateLimit``, with the units in ``RateLimit-Policy``: drafts 08 to 10 of the IETF's
   draft-ietf-httpapi-ratelimit-headers, and 07. Each member is a quota of its own.
2. ``RateLimit-Remaining`` and ``-Reset``: drafts 00 to 06. Also GitLab's, with an epoch.
3. ``X-RateLimit-Remaining-Requests`` and ``-Tokens``, ``-Reset-`` the same: OpenAI, Azure, Groq.
4. ``X-RateLimit-Remaining`` and ``-Reset``: GitHub, Discord, Reddit and most others.
5. ``X-Rate-Limit-Remaining`` and ``-Reset``: X (Twitter).
6. ``X-Shopify-Shop-Api-Call-Limit``: used/limit, without a reset.

``Retry-After`` counts on 429, 503 and 403 only; preferred are ``Retry-After-Ms`` and
``X-Ms-Retry-After-Ms``, which OpenAI and Azure send. Stripe sends a 429 with
``Stripe-Rate-Limited-Reason`` and documents nothing else, so of its answers only the refusal is
told. Limits themselves (``X-RateLimit-Limit``) are not read: what is left says enough.

Epochs and dates are compared with the answer's own ``Date``: no clock here needs to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from celery_throttle.clients import dialects
from celery_throttle.errors import shown

#: Seconds: anything farther counts as this. An API must not stop its callers for a day, or by
#: mistake for a year; after an hour, they ask again.
LONGEST = 3600.0

#: Seconds that a time may be past without being odd: clocks differ, and answers take their time.
CLOCKS_DIFFER = 60.0

#: Characters of a header; a longer one is ignored. The drafts' examples have less than a hundred.
LONGEST_TEXT = 1000

#: The unit of a quota that names none.
REQUESTS = "requests"

_RETRY_AFTER_MS = ("retry-after-ms", "x-ms-retry-after-ms")

# What is left, when there is more, and the unit; in the order of preference.
_PAIRS = (
    ("ratelimit-remaining", "ratelimit-reset", REQUESTS),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", REQUESTS),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset", REQUESTS),
    ("x-rate-limit-remaining", "x-rate-limit-reset", REQUESTS),
)
_SHOPIFY = "x-shopify-shop-api-call-limit"

# One of these is in every answer that says anything.
_TELLING = frozenset(
    ("retry-after", *_RETRY_AFTER_MS, "ratelimit", *(pair[0] for pair in _PAIRS), _SHOPIFY)
)
_READ = _TELLING | {"date", "ratelimit-policy", *(pair[1] for pair in _PAIRS)}

# GitHub refuses by 403 as well, and says then when to come again.
_REFUSALS = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.FORBIDDEN,
)

_T = TypeVar("_T")


class Budget(NamedTuple):
    """What an API says is left of one of its quotas."""

    left: int  #: whole units: 0 to 10**15 - 1
    reset: float | None  #: seconds from the answer until more is there; None if not told
    unit: str = REQUESTS  #: what the quota counts: "requests", "tokens", "content-bytes", ...


@dataclass(frozen=True, slots=True)
class Said:
    """What one answer says about limits.

    Attributes:
        refused: The status is 429; or 503 or 403 with a ``Retry-After`` that can be read: without
            one they are no word about limits.
        retry_after: Seconds to wait, 0 to ``LONGEST``; None if not told.
        budgets: What is left of each quota that it tells about.
        oddities: A message for each header that was ignored or bounded.
    """

    refused: bool
    retry_after: float | None
    budgets: tuple[Budget, ...]
    oddities: tuple[str, ...]


def read(status: int, headers: Mapping[str, str], now: float) -> Said:
    """Read one answer.

    Args:
        status: The status code.
        headers: Those of any client: names are compared in lower case, one by one, so a plain dict
            in any case does too. A repeated header is joined with commas, as RFC 9110, 5.3, has it.
        now: Seconds since the epoch by this machine's clock, in case the answer has no ``Date``.
    """
    # Most answers have no such header, and this is all the time they cost.
    if _TELLING.isdisjoint(map(str.lower, headers)):
        return Said(status == HTTPStatus.TOO_MANY_REQUESTS, None, (), ())
    reading = _Reading(_fields(headers), now)
    wait = None
    if status in _REFUSALS:
        wait = reading.retry_after()
    refused = status == HTTPStatus.TOO_MANY_REQUESTS or wait is not None
    return Said(refused, wait, tuple(reading.budgets()), tuple(reading.oddities.values()))


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in headers.items():
        key = name.lower()
        if key in _READ:
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


class _Told(NamedTuple):
    """A text and the header that it is from, or is a part of; no text if it is not told."""

    header: str
    text: str | None


class _Reading:
    """One answer while it is read."""

    def __init__(self, fields: dict[str, str], now: float) -> None:
        self.oddities: dict[str, str] = {}  # by header: the first one of each
        self._fields = fields
        self._sent = self._date(now)

    def retry_after(self) -> float | None:
        for name in _RETRY_AFTER_MS:
            wait = self._delay(self._told(name), dialects.milliseconds)
            if wait is not None:
                return wait
        return self._delay(
            self._told("retry-after"), partial(dialects.retry_after, sent=self._sent)
        )

    def budgets(self) -> list[Budget]:
        found: list[Budget] = []
        for told in (self._ratelimit(), *map(self._pair, _PAIRS), self._shopify()):
            units = {budget.unit for budget in found}
            found += [budget for budget in told if budget.unit not in units]
        return found

    def _ratelimit(self) -> list[Budget]:
        members = self._value(self._told("ratelimit"), dialects.members) or []
        if any(member.key for member in members):  # draft 07: limit=100, remaining=50, reset=5
            told = {member.key: member.value for member in members}
            return self._member(told.get("remaining"), told.get("reset"), REQUESTS)
        units = self._units() if members else {}
        found: list[Budget] = []
        for member in members:
            left, reset = member.parameters.get("r"), member.parameters.get("t")
            if left is None:
                self._odd(_Told("ratelimit", member.value), "has no r=")
            found += self._member(left, reset, units.get(member.value, REQUESTS))
        return found

    def _units(self) -> dict[str, str]:
        """The units of the policies that name one."""
        policies = self._value(self._told("ratelimit-policy"), dialects.members) or []
        units = {policy.value: policy.parameters.get("qu", "").strip('"') for policy in policies}
        return {policy: unit for policy, unit in units.items() if unit}

    def _member(self, left: str | None, reset: str | None, unit: str) -> list[Budget]:
        return self._budget(_Told("ratelimit", left), _Told("ratelimit", reset), unit)

    def _pair(self, pair: tuple[str, str, str]) -> list[Budget]:
        left, reset, unit = pair
        return self._budget(self._told(left), self._told(reset), unit)

    def _shopify(self) -> list[Budget]:
        left = self._value(self._told(_SHOPIFY), dialects.left_of)
        return [] if left is None else [Budget(left, None)]

    def _budget(self, told: _Told, reset: _Told, unit: str) -> list[Budget]:
        left = self._value(told, dialects.whole)
        if left is None:
            return []
        return [Budget(left, self._delay(reset, partial(dialects.reset, sent=self._sent)), unit)]

    def _date(self, now: float) -> float:
        """When the answer was sent, by its sender's clock; ``now`` if that is not set."""
        told = self._told("date")
        sent = self._value(told, dialects.date)
        if sent is not None and sent < dialects.LEAST_EPOCH:
            self._odd(told, "is no time of today")
            return now
        return now if sent is None else sent

    def _told(self, name: str) -> _Told:
        text = self._fields.get(name)
        if text is None:
            return _Told(name, None)
        if len(text) > LONGEST_TEXT:
            self._odd(_Told(name, text), f"has more than {LONGEST_TEXT} characters")
            return _Told(name, None)
        return _Told(name, text.strip(" \t"))

    def _value(self, told: _Told, parse: Callable[[str], _T]) -> _T | None:
        if told.text is None:
            return None
        try:
            return parse(told.text)
        except ValueError as error:
            self._odd(told, str(error))
            return None

    def _delay(self, told: _Told, parse: Callable[[str], float]) -> float | None:
        delay = self._value(told, parse)
        if delay is None:
            return None
        if delay > LONGEST:
            self._odd(told, f"is {delay:.0f} s ahead", f"taken as {LONGEST:.0f} s")
        elif delay < -CLOCKS_DIFFER:
            self._odd(told, f"is {-delay:.0f} s ago", "taken as 0 s")
        return min(max(delay, 0.0), LONGEST)

    def _odd(self, told: _Told, why: str, done: str = "ignored") -> None:
        text = (told.text or "")[:LONGEST_TEXT]
        self.oddities.setdefault(told.header, f"{told.header}: {shown(text)} {why}, {done}")
