"""What is said to a client: the header fields of a decision, and the answers 429 and 503.

Texts only; it asks no server and knows no web interface. ``RateLimit`` and ``RateLimit-Policy`` are
those of draft-ietf-httpapi-ratelimit-headers-10, the body is a problem document (RFC 9457).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import ceil, gcd, inf

from celery_throttle.errors import StoreError, Throttled
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import has_slots

#: Names and values of header fields.
Fields = Sequence[tuple[str, str]]

#: Seconds that a client is told to wait for something of which nobody knows when it will come.
SOON = 1

#: The same where a limit is paused until somebody resumes it.
LATER = 60

#: What the draft registers for a client over its limit.
_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

#: Algorithms of which one unit after the other comes back, each after the same time.
_EVEN = ("gcra", "token-bucket", "leaky-bucket")

#: The largest integer of a structured field.
_LARGEST = 999_999_999_999_999

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request that does not reach the app.

    Attributes:
        status: 429, or 503 while the server of the limits is lost.
        headers: names and values; each name once.
        body: a problem document in JSON.
        retry_after: seconds, whole and at least 1, as the header of that name says.
        limit: the name of the limit that binds; None while the server of the limits is lost.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    retry_after: int
    limit: str | None = None

    @property
    def line(self) -> str:
        """The status as WSGI has it: ``"429 Too Many Requests"``."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def more(self) -> tuple[tuple[str, str], ...]:
        """The headers that go with any other body as well."""
        return tuple(one for one in self.headers if not one[0].startswith("Content-"))


def answer_to(error: Throttled | StoreError) -> Answer:
    """The answer to what :func:`~celery_throttle.inbound.throttled` raised, for error handlers.

    Without the header fields that tell what remains, of which the error does not know.
    """
    if isinstance(error, Throttled):
        return refusal(error.limit, whole_seconds(error.retry_after, error.paused))
    return outage()


def refusal(limit: str, retry_after: int, fields: Fields = (), *, named: bool = True) -> Answer:
    """429: a limit refused.

    Args:
        limit: the name of the one that binds.
        retry_after: whole seconds.
        fields: more headers.
        named: whether the body tells the limit.
    """
    about = {"violated-policies": [limit]} if named else {}
    answer = _answer(HTTPStatus.TOO_MANY_REQUESTS, _EXCEEDED, retry_after, about)
    return replace(answer, headers=(*answer.headers, *fields), limit=limit)


def outage() -> Answer:
    """503: nobody can tell whether the limits allow it."""
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "about:blank", SOON, {})


def _answer(status: HTTPStatus, kind: str, retry_after: int, about: Mapping[str, object]) -> Answer:
    problem = {
        "type": kind,
        "title": status.phrase,
        "status": int(status),
        "detail": f"This could pass in {retry_after} s.",
        **about,
    }
    body = json.dumps(problem).encode("ascii")
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Retry-After", str(retry_after)),
    )
    return Answer(int(status), headers, body, retry_after)


def whole_seconds(wait: float | None, paused: float = 0.0) -> int:
    """A wait as clients are told of it: rounded up, at least 1. None: nobody knows how long."""
    return LATER if paused == inf else max(SOON, ceil(wait or 0))


@dataclass(frozen=True, slots=True)
class Policies:
    """The limits of some names, as header fields tell of them.

    Attributes:
        limits: by name, as the code defines them.
        text: the value of ``RateLimit-Policy``; empty if there is nothing to tell.
    """

    limits: Mapping[str, Limits]
    text: str

    @classmethod
    def of(cls, limits: Mapping[str, Limits]) -> Policies:
        """Of all limits of some names."""
        return cls(limits, ", ".join(item for name in limits for item in _items(name, limits)))

    def fields(self, decision: Decision) -> Iterator[tuple[str, str]]:
        """The header fields that go with a decision.

        ``t`` and ``X-RateLimit-Reset`` are whole seconds from now, rounded up: until there is
        surely more, and until the limit is full again. Both are left out of a request that took a
        slot, of which nobody knows when it is given back.
        """
        refused = not decision.allowed
        wait = self.wait(decision) if refused else ceil(self._until_more(decision))
        name = decision.bound_by or self._binding(decision.limit)
        told = refused or not (name and self.slots_only(name))
        if name:
            after = f";t={wait}" if told else ""
            yield "RateLimit", f'"{name}";r={decision.remaining}{after}'
        if self.text and self._is_current(decision.limit):
            yield "RateLimit-Policy", self.text
        yield "X-RateLimit-Limit", str(decision.limit)
        yield "X-RateLimit-Remaining", str(decision.remaining)
        if told:
            unknown = decision.paused == inf or (refused and self.slots_only(name))
            full = wait if unknown else ceil(decision.reset_after)
            yield "X-RateLimit-Reset", str(max(wait, full))

    def _until_more(self, decision: Decision) -> float:
        """Seconds until there is surely more after what was allowed: at the latest, when full.

        Of one limit that drains evenly it is known when it has the next unit.
        """
        limits = [limit for of in self.limits.values() for limit in of]
        full, only = decision.reset_after, limits[0]
        if len(limits) > 1 or only.algorithm not in _EVEN or only.burst != decision.limit:
            return full
        microseconds, units = only.rate.interval if isinstance(only.rate, Rate) else (0, 1)
        used = max(0, decision.limit - decision.remaining - 1)
        return max(0.0, full - used * microseconds / units / _MICROSECONDS)

    def wait(self, decision: Decision) -> int:
        """The seconds that a client who is refused is told to wait."""
        if decision.bound_by and self.slots_only(decision.bound_by) and not decision.paused:
            return SOON  # it is given back when some request ends, not when its lease would
        return whole_seconds(decision.retry_after, decision.paused)

    def capacity(self, name: str) -> int:
        """The units of a name that can pass at once, as the code defines it."""
        return min(limit.burst for limit in self.limits[name])

    def slots_only(self, name: str | None) -> bool:
        """Whether a name is a number of slots and nothing else."""
        return name is not None and all(map(has_slots, self.limits[name]))

    def _binding(self, capacity: int) -> str | None:
        """Which name a decision is about that allowed: it tells the capacity alone."""
        if len(self.limits) == 1:
            return next(iter(self.limits))
        found = [name for name in self.limits if capacity in self._capacities(name)]
        return found[0] if len(found) == 1 else None

    def _is_current(self, capacity: int) -> bool:
        """Whether the code's limits may be those in force: one may be redefined at run time."""
        return any(capacity in self._capacities(name) for name in self.limits)

    def _capacities(self, name: str) -> set[int]:
        return {limit.burst for limit in self.limits[name]}


def _items(name: str, limits: Mapping[str, Limits]) -> Iterator[str]:
    """The quota policies of a name: rates in whole seconds, as the draft has them, and slots."""
    for limit in limits[name]:
        if has_slots(limit):
            yield f'"{name}";q={limit.burst};qu="concurrent-requests"'
        elif isinstance(limit.rate, Rate):
            count, period = limit.rate.count, limit.rate.period_us
            times = _MICROSECONDS // gcd(period, _MICROSECONDS)
            quota, seconds = min(count * times, _LARGEST), period * times // _MICROSECONDS
            yield f'"{name}";q={quota};w={seconds}'
