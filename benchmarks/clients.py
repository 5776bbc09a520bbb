"""Outbound API clients with our wrappers, beside the same ones alone and with backoff.

Four processes (``apps/driver.py``) send to a local HTTP API with limits of its own (``api.py``) as
fast as they can, for 20 s each: with 100 requests per second, by two threads or coroutines each;
and with 10 at once, where each request takes 100 ms, by five each. The API counts its answers and
the use of its quota, from the first request on, so first connections are included. It is restarted
each time, and our limits begin unused. The wrappers get ``98/s`` for the first rule, see
``driver.py``, so they can use at most 0.98 of the quota.

*Time of a call* is measured with an API without a limit, and a limit that never binds. The API, the
server of the limits and the caller share one processor, see ``pinned.py``; calls with and without
the wrapper alternate.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks.api import LocalAPI
from benchmarks.apps.driver import (
    ASYNC_CLIENTS,
    BACKOFF,
    CLIENTS,
    LIMITS,
    OURS,
    PLAIN,
    Job,
)
from benchmarks.pinned import WHERE, Side, compare, pinned_server
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import ROOT, Stage
from celery_throttle import Limiter

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

PROCESSES = 4
NAMES = (*CLIENTS, *ASYNC_CLIENTS)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the API: its limit in words, ours for it, and the senders per process."""

    text: str
    limit: str
    hands: int


RULES = {"window": Rule("100/s", "api", 2), "at-once": Rule("10 at once", "pool", 5)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the API counted: answers per second, the share that it refused, and its quota used."""

    answers: float
    refused: float
    used: float


class Driver:
    """Context: a driver process."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.apps.driver", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read_line(self) -> str:
        """Return the next line that it prints.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a driver has ended: its errors are above")
        return line

    def proceed(self) -> None:
        """Let it begin, or end."""
        assert self._process.stdin is not None  # noqa: S101  # it is a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def _drive(stage: Stage, rule: str, client: str, way: str, seconds: float) -> Outcome:
    """Drive the API for some seconds."""
    name, hands = RULES[rule].limit, RULES[rule].hands
    prefix = f"{{{uuid4().hex}}}"
    with LocalAPI() as api, ExitStack() as ends:
        job = Job(client, way, api.url(rule), name, stage.store_url, prefix, hands)
        drivers = [ends.enter_context(Driver(job)) for _ in range(PROCESSES)]
        for driver in drivers:
            driver.read_line()
        for driver in drivers:
            driver.proceed()
        time.sleep(seconds)
        counted = api.stats()[rule]
        for driver in drivers:
            driver.proceed()
        for driver in drivers:  # a driver whose call raised ends without a line
            statuses = json.loads(driver.read_line())
            if not set(statuses) <= {"200", "429"}:
                raise RuntimeError(f"a driver was answered {statuses}")
    answers = counted["passed"] + counted["refused"]
    return Outcome(answers / counted["seconds"], counted["refused"] / answers, counted["used"])


def run(options: Options) -> Result:
    """Measure both rules, then the time of a call."""
    figures: list[Figure] = []
    with Stage() as stage:
        for rule in RULES:
            figures += _driven(stage, rule, options)
    options.say(f"clients: timing, {WHERE}")
    return Result(
        name="clients",
        theirs=f"the client, retry on 429 with backoff; time: without the wrapper, {WHERE}",
        figures=[*figures, *_times(options)],
    )


def _driven(stage: Stage, rule: str, options: Options) -> Iterator[Figure]:
    text, seconds = RULES[rule].text, options.pick(20, 4)

    def ask(client: str, way: str) -> Outcome:
        options.say(f"clients: {text}, {client}, {way}")
        return _drive(stage, rule, client, way, seconds)

    for client in NAMES:
        alone, theirs, ours = (ask(client, way) for way in (PLAIN, BACKOFF, OURS))
        yield Figure(f"{text}, {client}: 429s", "of all", ours.refused, theirs.refused, None, 0.001)
        yield Figure("  quota used", "", ours.used, theirs.used, at_least=0.95)
        yield Figure("  answers", "1/s", ours.answers, theirs.answers)
        yield Figure("  without a wrapper, and without backoff: 429s", "of all", alone.refused)


def _times(options: Options) -> Iterator[Figure]:
    with pinned_server() as store, LocalAPI() as api:
        limiter = Limiter(store, LIMITS)
        with _sides(api.url("open"), limiter) as sides:
            times = compare(sides, options)
    for client in NAMES:
        for limit, kind in (("free", "a rate"), ("room", "slots")):
            ours, plain = f"{client}: {limit}", f"{client}: plain"
            ratios = [1 / ratio for ratio in times.beside(ours, plain)]
            pairs = zip(times.rounds[ours], times.rounds[plain], strict=True)
            added = [mine - its for mine, its in pairs]
            name = f"{client}, {kind} with room: time of a call"
            yield Figure(name, "us", times.of(ours), times.of(plain))
            yield Figure("  of that without the wrapper", "", median(ratios), rounds=ratios)
            yield Figure("  the wrapper adds", "us", median(added), rounds=added)


@contextmanager
def _sides(url: str, limiter: Limiter) -> Iterator[dict[str, Side]]:
    """Context: each client without a limit, with a rate, and with slots."""
    ways = [("plain", PLAIN, "free"), ("free", OURS, "free"), ("room", OURS, "room")]
    loop, sides = asyncio.new_event_loop(), {}

    def is_ok(answer: Any) -> bool:
        return bool(answer[0] == 200)

    with ExitStack() as ends:
        ends.callback(loop.close)
        ends.callback(lambda: loop.run_until_complete(limiter.store.aclose()))
        opened = AsyncExitStack()
        ends.callback(lambda: loop.run_until_complete(opened.aclose()))
        for client in NAMES:
            for side, way, limit in ways:
                call: Any
                if client in CLIENTS:
                    call = ends.enter_context(CLIENTS[client](url, way, limiter[limit]))
                    sides[f"{client}: {side}"] = Side(call, is_ok)
                else:
                    context = ASYNC_CLIENTS[client](url, way, limiter[limit])
                    call = loop.run_until_complete(opened.enter_async_context(context))
                    sides[f"{client}: {side}"] = Side(call, is_ok, loop)
        yield sides
