"""Calls of 50 tenants under one quota of an API, while the API makes trouble.

5,000 tasks, of 50 tenants in turn, call a local OpenAI by its SDK: ``throttled()`` with a limit of
the account (``adaptive 10..50/s``) and one for each tenant. The API allows 50 requests a second.
There are two prefork workers with two processes each. Ten seconds after the first request

``halved limit``
    the API allows half as much, and its headers say so, until the end.
``overload``
    it answers 503 (``server_is_overloaded``) for 20 s, without a time.
``revoked key``
    it answers 401 to one tenant, until the end; these calls fail, and no other may.
``Retry-After``
    it answers 429 for 10 s, with the time that is left of them.

*Refused* are answers 429 and 503. *Quota used* is the share of what the API then allows, for 20 s
that begin five seconds after the trouble has ended, or has begun if it has no end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, ready, wait_until
from benchmarks.vendors import OK
from tests.clients.vendors import OpenAI, Reply

RATE = 50
TENANTS, REVOKED = 50, "7"
LIMITS = {"api": f"adaptive {RATE // 5}..{RATE}/s burst 10", "tenant": "5/s burst 5"}

#: Seconds: when the trouble begins, after what the quota must be used again, and for how long.
BEGIN, RECOVERY, WINDOW = 10.0, 5.0, 20.0

#: Bars of the issue.
MOST_REFUSED, LEAST_USED = 0.01, 0.9
REFUSALS = (429, 503)


class TroubledAPI(OpenAI):
    """OpenAI with a limit of requests, and a trouble that is a method of this class."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__({"requests": RATE * 60}, burst=1.0)
        self._kind = trouble
        self.began: float | None = None
        self.trouble = self._trouble

    def _trouble(self, request: dict[str, Any]) -> Reply | None:
        now = time.monotonic()
        if self.began is None:
            self.began = now
        age = now - self.began
        if not BEGIN <= age < BEGIN + self._kind.seconds:
            return None
        return self._kind.reply(self, request, BEGIN + self._kind.seconds - age)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an API does to its clients.

    Attributes:
        reply: Returns the answer to a request, for the seconds that are left; None for the usual.
        seconds: How long it lasts.
        rate: What the API allows a second afterwards.
    """

    name: str
    reply: Callable[[TroubledAPI, dict[str, Any], float], Reply | None]
    seconds: float = math.inf
    rate: float = RATE

    @property
    def recovered(self) -> float:
        """Seconds after the first request at which the quota is used again."""
        return BEGIN + RECOVERY + (self.seconds if self.seconds < math.inf else 0.0)


def _halve(api: TroubledAPI, _request: dict[str, Any], _left: float) -> None:
    bucket = api.buckets["requests"]
    if bucket.limit == RATE * 60:
        bucket.fill()
        bucket.limit /= 2


def _overload(_api: TroubledAPI, _request: dict[str, Any], _left: float) -> Reply:
    return _error(503, "server_is_overloaded")


def _revoke(_api: TroubledAPI, request: dict[str, Any], _left: float) -> Reply | None:
    return _error(401, "invalid_api_key") if request["user"] == REVOKED else None


def _stop(_api: TroubledAPI, _request: dict[str, Any], left: float) -> Reply:
    return _error(429, "rate_limit_exceeded", {"retry-after": str(math.ceil(left))})


def _error(status: int, code: str, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, {"error": {"message": code, "type": code, "code": code}}, headers or {})


TROUBLES = (
    Trouble("halved limit", _halve, rate=RATE / 2),
    Trouble("overload", _overload, seconds=20.0),
    Trouble("revoked key", _revoke),
    Trouble("Retry-After", _stop, seconds=10.0),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one trouble."""

    statuses: Counter[int]
    failed: int
    used: float

    @property
    def refused(self) -> float:
        """Share of the requests that were refused."""
        return sum(self.statuses[status] for status in REFUSALS) / self.statuses.total()


def run(options: Options) -> Result:
    """Measure each trouble."""
    figures: list[Figure] = []
    for trouble in TROUBLES:
        options.say(f"tenants: {trouble.name}")
        figures += _figures(trouble, measure(trouble, options.pick(5000, 1500)))
    return Result(name="tenants", theirs="", figures=figures)


def _figures(trouble: Trouble, outcome: Outcome) -> Iterator[Figure]:
    refused = outcome.refused
    yield Figure(f"{trouble.name}: refused", "of all", refused, at_most=MOST_REFUSED)
    yield Figure("  quota used afterwards", "", outcome.used, at_least=LEAST_USED)
    others = outcome.failed - outcome.statuses[401]
    yield Figure("  calls failed, but for a revoked key", "", others, at_most=0)


def measure(trouble: Trouble, calls: int) -> Outcome:
    """Send the calls while the API makes trouble."""
    api = TroubledAPI(trouble)
    try:
        settings = {"way": "tenants", "sdk": "openai", "url": api.url, "limits": LIMITS}
        with Stage(own_store=True, settings={**settings, "timeout": 10.0}) as stage:
            workers = [stage.worker("llm"), stage.worker("llm")]
            ready(workers)
            stage.send("call", calls, keys=[str(number) for number in range(TENANTS)])
            wait_until(
                lambda: sum(w.count("done") + w.count("failed") for w in workers) >= calls,
                "all calls",
            )
            failed = sum(worker.count("failed") for worker in workers)
        return Outcome(Counter(api.statuses()), failed, _used(api, trouble))
    finally:
        api.close()


def _used(api: TroubledAPI, trouble: Trouble) -> float:
    """Return the share of the quota that was used after the trouble."""
    began = (api.began or 0.0) + trouble.recovered
    passed = [at for at, status in api.log if status == OK]
    end = min(began + WINDOW, passed[-1])
    return sum(began <= at < end for at in passed) / ((end - began) * trouble.rate)
