"""Answers for clients: the header fields of a decision, and the answers 429 and 503. No I/O.

``RateLimit`` and ``RateLimit-Policy`` follow draft-ietf-httpapi-ratelimit-headers-10, the body is a
problem document (RFC 9457).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import ceil, gcd, inf

from celery_throttle.errors import StoreError, Throttled
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import has_slots

#: Names and values of header fields.
Fields = Sequence[tuple[str, str]]

#: ``Retry-After`` if nobody knows how long the wait is.
UNKNOWN_WAIT_SECONDS = 1

#: ``Retry-After`` while a limit is paused until it is resumed.
PAUSED_WAIT_SECONDS = 60

#: The problem type that the draft registers for a client over its limit.
_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

#: Algorithms whose units come back one by one, at equal intervals.
_EVEN = ("gcra", "token-bucket", "leaky-bucket")

#: The largest Integer of a structured field (RFC 9651).
_MAX_INTEGER = 999_999_999_999_999


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that does not reach the app.

    Attributes:
        status: The status code: 429, or 503 while the limits server cannot be reached.
        headers: Pairs of name and value; each name once.
        body: A problem document in JSON (RFC 9457).
        retry_after: The header ``Retry-After``: whole seconds, at least 1.
        limit: The name of the limit that refused the request; None with status 503.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    retry_after: int
    limit: str | None = None

    @property
    def status_line(self) -> str:
        """The status as WSGI has it, such as ``"429 Too Many Requests"``."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def bodyless_headers(self) -> tuple[tuple[str, str], ...]:
        """The headers without those that describe the body (``Content-...``)."""
        return tuple(one for one in self.headers if not one[0].startswith("Content-"))


def answer_to(error: Throttled | StoreError) -> Answer:
    """Return the answer for an error that :func:`~celery_throttle.inbound.ratelimit` raised.

    The answer has no header fields about remaining units, which the error does not contain.

    Args:
        error: :exc:`~celery_throttle.Throttled` becomes status 429,
            :exc:`~celery_throttle.StoreError` 503.

    Example:
        ::

            @app.errorhandler(Throttled)  # Flask
            def too_many(error):
                answer = answer_to(error)
                return Response(answer.body, answer.status, answer.headers)
    """
    if isinstance(error, Throttled):
        return refused_answer(error.limit, whole_seconds(error.retry_after, error.paused))
    return outage_answer()


def refused_answer(
    limit: str, retry_after: int, fields: Fields = (), *, named: bool = True
) -> Answer:
    """Return the answer 429, with added header fields; ``named``: its body names the limit."""
    members = {"violated-policies": [limit]} if named else {}
    problem = {"type": _QUOTA_EXCEEDED, **members}
    answer = _answer(HTTPStatus.TOO_MANY_REQUESTS, retry_after, problem)
    return replace(answer, headers=(*answer.headers, *fields), limit=limit)


def outage_answer() -> Answer:
    """Return the answer 503: the limits server cannot be reached."""
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, UNKNOWN_WAIT_SECONDS, {"type": "about:blank"})


def _answer(status: HTTPStatus, retry_after: int, problem: Mapping[str, object]) -> Answer:
    members = {
        "title": status.phrase,
        "status": int(status),
        "detail": f"This could pass in {retry_after} s.",
    }
    body = json.dumps({**problem, **members}).encode("ascii")
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Retry-After", str(retry_after)),
    )
    return Answer(int(status), headers, body, retry_after)


def whole_seconds(wait: float | None, paused: float = 0.0) -> int:
    """Return a wait as ``Retry-After`` states it: rounded up, at least 1. None is unknown."""
    return PAUSED_WAIT_SECONDS if paused == inf else max(UNKNOWN_WAIT_SECONDS, ceil(wait or 0))


class Policies:
    """Describes limits in header fields.

    Attributes:
        text: the value of ``RateLimit-Policy``; empty if there is none.
    """

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._bursts = {name: {limit.burst for limit in of} for name, of in limits.items()}
        #: The names of limits that have slots and no rate.
        self._slots = {name for name, of in limits.items() if all(map(has_slots, of))}
        self.text = ", ".join(item for name in limits for item in _items(name, limits[name]))
        first, *others = (limit for of in limits.values() for limit in of)
        #: A single limit that drains evenly: it tells when its next unit comes.
        self._even = first if first.algorithm in _EVEN and not others else None

    def fields(self, decision: Decision) -> Iterator[tuple[str, str]]:
        """Return the header fields of a decision.

        ``t`` and ``X-RateLimit-Reset`` are whole seconds from now, rounded up: until more units
        are certain, and until the limit is full again. Both are absent if a slot was acquired,
        since nobody knows when it will be released.
        """
        refused, burst = not decision.allowed, decision.burst
        # An allowing decision does not name the limit that it describes, only its burst.
        matching = [name for name, bursts in self._bursts.items() if burst in bursts]
        found = list(self._bursts) if len(self._bursts) == 1 else matching
        name = decision.limited_by or (found[0] if len(found) == 1 else None)
        slots = name in self._slots
        known = refused or not slots
        wait = self.wait(decision) if refused else ceil(self._until_more(decision))
        if name:
            reset = f";t={wait}" if known else ""
            yield "RateLimit", f'"{name}";r={decision.remaining}{reset}'
        if self.text and matching:  # else redefined at run time
            yield "RateLimit-Policy", self.text
        yield "X-RateLimit-Limit", str(burst)
        yield "X-RateLimit-Remaining", str(decision.remaining)
        if known:
            unknown = decision.paused == inf or slots
            full = wait if unknown else ceil(decision.reset_after)
            yield "X-RateLimit-Reset", str(max(wait, full))

    def _until_more(self, decision: Decision) -> float:
        """Return seconds until more units are certain: at the latest, when the limit is full."""
        full, even = decision.reset_after, self._even
        if even is None or even.burst != decision.burst or not isinstance(even.rate, Rate):
            return full
        microseconds, units = even.rate.interval
        used = max(0, decision.burst - decision.remaining - 1)
        return max(0.0, full - used * microseconds / units / MICROSECONDS)

    def wait(self, decision: Decision) -> int:
        """Return the ``Retry-After`` of a refusal."""
        if decision.limited_by in self._slots and not decision.paused:
            return UNKNOWN_WAIT_SECONDS  # released when a request ends, not when its lease would
        return whole_seconds(decision.retry_after, decision.paused)

    def refused(self, error: Throttled) -> Decision:
        """Return the decision of an error. Fewer units remain than the request needs."""
        return Decision(
            allowed=False,
            burst=min(self._bursts[error.limit]),
            remaining=0,
            retry_after=error.retry_after,
            reset_after=0.0,
            limited_by=error.limit,
            paused=error.paused,
        )


def _items(name: str, limits: Limits) -> Iterator[str]:
    """Return the quota policies of a limit: rates per whole seconds, as in the draft; slots."""
    for limit in limits:
        if has_slots(limit):
            yield f'"{name}";q={limit.burst};qu="concurrent-requests"'
        elif isinstance(limit.rate, Rate):
            count, period = limit.rate.count, limit.rate.period_us
            times = MICROSECONDS // gcd(period, MICROSECONDS)
            quota, seconds = min(count * times, _MAX_INTEGER), period * times // MICROSECONDS
            yield f'"{name}";q={quota};w={seconds}'
