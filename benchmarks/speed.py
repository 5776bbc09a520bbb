"""The speed of the limiter without Celery, beside other limiters for Python on Redis.

All figures are multiples of a plain call, redis-py's ``evalsha`` of the least that can decide,
taken in the same round on the same server: x 1.6 is 1.6 times as fast. Server and callers share one
processor, see ``pinned.py``. So what is measured is all the work that a library makes of a
decision, in its client and in its script.

Ours are GCRA. *Allowed* is under a limit that never binds and of which units are in use, *refused*
under one that is used up. Theirs is the fastest rival that asks the server's clock, as ours do: one
that trusts the clocks of its callers is over the limit as soon as they differ. A counter that
expires asks no clock, and admits twice its limit around the end of a window: the fastest of those
has a row without a bar. After ours come all rivals, one by one, see ``rivals.py``.

Sixteen decisions in one call are counted as sixteen. Three limits at once have one rival, rates of
one key in pyrate-limiter, by the caller's clock. What is awaited is compared with redis-py's client
for asyncio, in an event loop that has nothing else to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import redis.asyncio

from benchmarks.pinned import (
    PLAIN,
    SCRIPT,
    WHERE,
    Side,
    Times,
    compare,
    is_allowed,
    pinned_server,
    plain,
)
from benchmarks.results import Figure, Options, Result
from benchmarks.rivals import EXPIRY, TIME, Rival, rivals, three_rates
from celery_throttle import Limiter

#: What never binds: a rate a second, and a burst.
RATE, BURST = 1_000, 1_000_000
FREE = f"{RATE}/s burst {BURST}"

#: Name of the plain call for asyncio among the sides.
APLAIN = "asyncio evalsha"

SIXTEEN = 16
KEYS = [("tenant", f"tenant-{number}") for number in range(SIXTEEN)]


def run(options: Options) -> Result:
    """Time all sides."""
    options.say(f"speed: timing, {WHERE}")
    with pinned_server() as url:
        others = rivals(url, RATE, BURST)
        with _awaited(url) as awaited:
            sides = {
                PLAIN: plain(url, RATE, BURST),
                **_ours(url),
                **awaited,
                "three rates": three_rates(url, RATE, BURST),
                **{f"{one.name}: allowed": one.allowed for one in others},
                **{f"{one.name}: refused": one.refused for one in others},
            }
            times = compare(sides, options)
    return Result(
        name="speed",
        theirs=f"the fastest library by the server's clock; {WHERE}",
        figures=[*_figures(times, others), *_each(times, others)],
    )


def _ours(url: str) -> Mapping[str, Side]:
    names = ("api", "a", "b", "c", "batch", "tenant")
    limiter = Limiter(url, {**dict.fromkeys(names, FREE), "rates": [FREE] * 3, "used-up": "1/d"})
    limiter["used-up"].try_acquire()
    return {
        "allowed": Side(limiter["api"].acquire),
        "refused": Side(limiter["used-up"].try_acquire, lambda decision: not decision),
        "three": Side(partial(limiter.acquire, ["a", "b", "c"])),
        "three of one": Side(limiter["rates"].acquire),
        "units": Side(partial(limiter["batch"].acquire_up_to, SIXTEEN), _is_sixteen),
        "keys": Side(partial(limiter.acquire, [limiter[pair] for pair in KEYS])),
    }


def _is_sixteen(decision: Any) -> bool:
    return bool(decision.granted == SIXTEEN)


@contextmanager
def _awaited(url: str) -> Iterator[Mapping[str, Side]]:
    """Ours and the plain call for asyncio, in one event loop."""
    loop = asyncio.new_event_loop()
    client = redis.asyncio.Redis.from_url(url)
    limiter = Limiter(url, {"awaited": FREE})
    sha = loop.run_until_complete(client.script_load(SCRIPT))
    call = partial(client.evalsha, sha, 1, "awaited", 1_000_000 // RATE, BURST)
    try:
        yield {
            APLAIN: Side(call, is_allowed, loop),
            "awaited": Side(limiter["awaited"].aacquire, loop=loop),
        }
    finally:
        loop.run_until_complete(limiter.store.aclose())
        loop.run_until_complete(client.aclose())
        loop.close()


def _figures(times: Times, others: Sequence[Rival]) -> Iterator[Figure]:
    for kind in ("allowed", "refused"):
        best, counter = (_fastest(kind, times, others, clock) for clock in (TIME, EXPIRY))
        theirs = times.beside(f"{best}: {kind}")
        yield _figure(f"acquire(), {kind}", times.beside(kind), 1.6, theirs)
        yield _figure(f"  ratio to {best}", times.beside(kind, f"{best}: {kind}"), 2.0)
        yield _figure(f"  ratio to {counter}", times.beside(kind, f"{counter}: {kind}"))
        yield _took(times, kind, PLAIN)
    rates = times.beside("three rates")
    for side, what in (("three", "three limits"), ("three of one", "three limits of one name")):
        yield _figure(f"acquire() of {what}", times.beside(side), 1.4, rates)
        longer = times.beside("allowed", side)
        yield Figure(
            "  ratio of its time to that of one limit",
            "",
            median(longer),
            at_most=1.5,
            rounds=longer,
        )
    units, keys = (times.beside(side, decisions=SIXTEEN) for side in ("units", "keys"))
    yield _figure("acquire_up_to(16), a unit", units, 8.0)
    yield _figure("acquire() of 16 keys, a key", keys, 8.0)
    yield _figure("aacquire(), of asyncio's evalsha", times.beside("awaited", APLAIN), 1.0)
    yield _took(times, "awaited", APLAIN)


def _took(times: Times, side: str, other: str) -> Figure:
    name = "  time of a call (right: evalsha)"
    return Figure(name, "us", times.of(side), times.of(other))


def _fastest(kind: str, times: Times, others: Sequence[Rival], clock: str) -> str:
    names = [one.name for one in others if one.clock == clock]
    return max(names, key=lambda name: median(times.beside(f"{name}: {kind}")))


def _each(times: Times, others: Sequence[Rival]) -> Iterator[Figure]:
    for one in others:
        for kind in ("allowed", "refused"):
            ours, theirs = times.beside(kind), times.beside(f"{one.name}: {kind}")
            name = f"{one.name}, {one.clock}: {kind}"
            yield Figure(name, "x", median(ours), median(theirs))


def _figure(
    name: str, ours: Sequence[float], bar: float | None = None, theirs: Sequence[float] = ()
) -> Figure:
    beside = median(theirs) if theirs else None
    return Figure(name, "x", median(ours), beside, at_least=bar, rounds=ours)
