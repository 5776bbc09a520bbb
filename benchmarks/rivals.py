"""Other limiters for Python on Redis, each on a connection as it makes it itself.

By whose clock each of their algorithms decides, from the sources of the versions that the extra
``bench`` names:

``limits`` 5.8 has neither GCRA nor a token bucket, and no script of it asks Redis for the time.
    - moving-window (a list of times), nearest to GCRA as it never admits more than the limit in any
      window: the caller's ``time.time()``, passed as an argument.
    - fixed-window (INCRBY, and EXPIRE by the first) and sliding-window-counter (two such counters,
      weighted by the PTTL of the older): no clock but the expiry of their keys, so the server's.

``pyrate-limiter`` 4.5 decides by the caller's clock throughout, in whole milliseconds: "We are not
using redis' built-in TIME since it is non-deterministic".
    - GCRA, and TokenBucket, the same class by another name, on RedisStateStore (a hash):
      ``time.time_ns()``, passed as an argument. It decides over several rates of one key at once.
    - SlidingWindowLog and FixedWindow on RedisBucket (a sorted set that a thread trims): the same.

``throttled-py`` 3.5
    - gcra (a string): TIME in the script, to the microsecond.
    - token_bucket and leaking_bucket (a hash): TIME in the script, to the whole second.
    - fixed_window (INCRBY and, in a call of its own, EXPIRE) and sliding_window (two counters): the
      caller's ``time.time()`` in the names of keys, of the latter as an argument too.

Measured here are of each the algorithm nearest to GCRA and all that do not ask the caller's clock:
which of these is the fastest may change from machine to machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import limits
import pyrate_limiter as pyrate
import redis
import throttled
from limits.storage import RedisStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)

from benchmarks.pinned import Side

Call = Callable[[], Any]

#: By what an algorithm decides.
CALLER, EXPIRY, TIME = "caller's clock", "expiry of keys", "server's clock"


@dataclass(frozen=True, slots=True)
class Rival:
    """One algorithm of another library, under a limit that never binds and under a used up one."""

    name: str
    clock: str
    allowed: Side
    refused: Side


def rivals(url: str, rate: int, burst: int) -> list[Rival]:
    """All of them. What never binds is a rate a second and a burst; used up is one a day."""
    return [
        *_of_limits(url, burst),
        _of_pyrate(url, rate, burst),
        *_of_throttled(url, rate, burst),
    ]


def _rival(name: str, clock: str, free: Call, used_up: Call) -> Rival:
    used_up()
    return Rival(name, clock, Side(free, _passed), Side(used_up, _did_not_pass))


def _passed(answer: Any) -> bool:
    return not answer.limited if isinstance(answer, throttled.RateLimitResult) else bool(answer)


def _did_not_pass(answer: Any) -> bool:
    return not _passed(answer)


def _of_limits(url: str, burst: int) -> list[Rival]:
    storage = RedisStorage(url)
    free, used_up = limits.RateLimitItemPerHour(burst), limits.RateLimitItemPerDay(1)
    found = []
    for name, clock, strategy in (
        ("moving-window", CALLER, MovingWindowRateLimiter),
        ("fixed-window", EXPIRY, FixedWindowRateLimiter),
        ("sliding-window-counter", EXPIRY, SlidingWindowCounterRateLimiter),
    ):
        hit = strategy(storage).hit
        # Its keys do not tell strategies apart.
        calls = partial(hit, free, name), partial(hit, used_up, name)
        found.append(_rival(f"limits {name}", clock, *calls))
    return found


def _of_pyrate(url: str, rate: int, burst: int) -> Rival:
    free = _pyrate_call(url, "free", pyrate.Rate(rate, pyrate.Duration.SECOND, burst))
    used_up = _pyrate_call(url, "used up", pyrate.Rate(1, pyrate.Duration.DAY))
    return _rival("pyrate-limiter GCRA", CALLER, free, used_up)


def three_rates(url: str, rate: int, burst: int) -> Side:
    """The one rival that decides over several limits at once: rates of one key, by GCRA."""
    rates = [pyrate.Rate(rate * seconds, 1000 * seconds, burst) for seconds in (1, 60, 3600)]
    return Side(_pyrate_call(url, "three", *rates), _passed)


def _pyrate_call(url: str, key: str, *rates: pyrate.Rate) -> Call:
    store = pyrate.RedisStateStore(redis.Redis.from_url(url), f"pyrate {key}")
    bucket = pyrate.StateBucket(list(rates), pyrate.GCRA(), store)
    # The thread that trims logs in the background would have nothing to do for this algorithm.
    limiter = pyrate.Limiter(pyrate.SingleBucketFactory(bucket, schedule_leak=False))
    return partial(limiter.try_acquire, "api", blocking=False)


def _of_throttled(url: str, rate: int, burst: int) -> list[Rival]:
    store = throttled.RedisStore(url)

    def call(algorithm: str, key: str, quota: throttled.Quota) -> Call:
        return throttled.Throttled(key, using=algorithm, quota=quota, store=store).limit

    found = []
    for algorithm in ("gcra", "token_bucket", "leaking_bucket"):
        free = call(algorithm, "free", throttled.per_sec(rate, burst))
        used_up = call(algorithm, "used up", throttled.per_day(1, 1))
        found.append(_rival(f"throttled-py {algorithm}", TIME, free, used_up))
    return found
