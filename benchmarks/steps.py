"""What each step of a task's way costs the server: the calls of workers, one at a time.

Each step is one call of a script, made many times by one client that waits for each reply. The
figures are of one call: the processor time of the server's process (user and system), the time in
which the server ran the script, the commands, those of the script included, and the bytes of
request and reply. Messages have 300 bytes. The server does nothing else meanwhile. Each figure is
that of the cheapest of ten rounds.

With ``--against PATH``, another checkout such as the last release, the steps of both are run in
turn, five times. The figures are then the processor time of each step, as a share of what it is
there: medians over the rounds. A step that the other checkout does not have is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import redis

from benchmarks.lines import claim, park, park_at
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import ROOT, Stage
from celery_throttle import Limiter
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.store.script import Call

#: One that never binds, one that never has room, and one for tasks that wait and may be claimed.
LIMITS = {"free": "1000000/s burst 1000000", "full": "1/d", "due": "1000000/s burst 1000000"}
ROUNDS = 10


class Cost(NamedTuple):
    """Of some calls, in all."""

    cpu_us: float
    script_us: float
    commands: float
    bytes_in: float
    bytes_out: float


#: The most that a step may cost, as a share of what it costs in another checkout.
MOST = 1.1


def run(options: Options) -> Result:
    """Measure all steps, or compare them with those of another checkout."""
    return _compare(options.against, options) if options.against else _measure_all(options)


def _compare(other: Path, options: Options) -> Result:
    rounds: list[dict[str, float]] = []
    for number in range(options.pick(5, 1)):
        options.say(f"steps: round {number + 1}")
        ours, theirs = (_run_in(root, quick=options.quick) for root in (ROOT, other))
        rounds.append({name: us / theirs[name] for name, us in ours.items() if theirs.get(name)})
    figures = [
        Figure(name, "", median(values), 1.0, at_most=MOST, rounds=values)
        for name, values in ((name, [one[name] for one in rounds]) for name in rounds[0])
    ]
    return Result(name="steps", theirs=f"the checkout {other}", figures=figures)


def _run_in(root: Path, *, quick: bool) -> dict[str, float]:
    """Return the processor time (us) of each step in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks", "steps", "--json", folder]
        command += ["--quick"] if quick else []
        subprocess.run(command, cwd=root, check=True, capture_output=True)
        figures = json.loads(Path(folder, "steps.json").read_text(encoding="utf-8"))["figures"]
    return {one["name"]: one["value"] for one in figures if "processor time" in one["name"]}


def _measure_all(options: Options) -> Result:
    calls = options.pick(5_000, 500)
    with Stage() as stage:
        steps = Steps(stage)
        figures = [
            figure
            for name, step, times in (
                ("a task is allowed at the gate (admit)", steps.admit, calls),
                ("a refused task joins its line (park)", steps.park, calls),
                ("eight refused tasks join it together", steps.park_eight, calls // 8),
                ("eight refused tasks join a line each", steps.park_each, calls // 8),
                ("a claim brings one task, and settles one", steps.claim, calls),
                ("a claim brings ten tasks, and settles ten", steps.claim_ten, calls // 10),
                ("a claim finds nothing (poll)", steps.poll, calls),
                ("a call settles one task (report)", steps.report, calls),
            )
            for figure in _figures(name, measure(stage.store, step(times + 1)))
        ]
    return Result(name="steps", theirs="", figures=figures)


def _figures(name: str, cost: Cost) -> Iterator[Figure]:
    yield Figure(f"{name}: processor time", "us", cost.cpu_us)
    yield Figure("  of it in the script", "us", cost.script_us)
    yield Figure("  commands", "", cost.commands)
    yield Figure("  bytes of the request", "", cost.bytes_in)
    yield Figure("  bytes of the reply", "", cost.bytes_out)


class Steps:
    """The calls of one worker; each method prepares a step, and returns its calls."""

    def __init__(self, stage: Stage) -> None:
        self._limiter = Limiter(stage.store_url, LIMITS)
        self._limiter.register()
        self._limiter["full"].acquire()
        self._tokens, self._ids = count(1), count(1)
        self._claimed: list[int] = []

    def admit(self, times: int) -> Iterable[Callable[[], Any]]:
        """Return calls of the gate, each for a task that is allowed."""
        call = gate_call(
            self._limiter.plans, [GateRequest(self._limiter.require(["free"], 1))], 20_000
        )
        return [self._run(call)] * times

    def park(self, times: int, size: int = 1, limit: str = "full") -> Iterable[Callable[[], Any]]:
        """Return calls that park some tasks each."""
        ids = ([f"{next(self._ids):036}" for _ in range(size)] for _ in range(times))
        return [self._run(park(self._limiter, [limit], *some)) for some in ids]

    def park_eight(self, times: int) -> Iterable[Callable[[], Any]]:
        """Return calls that park eight tasks each."""
        return self.park(times, size=8)

    def park_each(self, times: int) -> Iterable[Callable[[], Any]]:
        """Return calls that park eight tasks each, which wait for eight keys of a limit."""
        for _ in range(times):
            tasks = {f"{next(self._ids):036}": ("full", key) for key in range(8)}
            yield self._run(park_at(self._limiter, tasks))

    def claim(self, times: int, size: int = 1) -> Iterable[Callable[[], Any]]:
        """Park tasks; return calls that claim some of them, and settle those of the call before."""
        for call in self.park(times, size, "due"):
            call()
        for _ in range(times):
            settled, self._claimed = self._claimed, [next(self._tokens) for _ in range(size)]
            yield self._run(claim(self._limiter, self._claimed, settled))

    def claim_ten(self, times: int) -> Iterable[Callable[[], Any]]:
        """Return calls that claim ten tasks each."""
        return self.claim(times, size=10)

    def poll(self, times: int) -> Iterable[Callable[[], Any]]:
        """Return calls that want tasks of a line whose limit has no room."""
        return [self._run(claim(self._limiter, [next(self._tokens)], ())) for _ in range(times)]

    def report(self, times: int) -> Iterable[Callable[[], Any]]:
        """Claim tasks; return calls that settle one each."""
        for call in self.claim(times // 10 + 1, size=10):
            call()
            tokens, self._claimed = self._claimed, []
            yield from (self._run(claim(self._limiter, (), [token])) for token in tokens)

    def _run(self, call: Call) -> Callable[[], Any]:
        return lambda: self._limiter.store.run(call)


def measure(server: redis.Redis, calls: Iterable[Callable[[], Any]]) -> Cost:
    """Make calls one after the other, and return the cost of one, in the cheapest of ten rounds."""
    prepared = list(calls)
    size = len(prepared) // ROUNDS
    prepared[0]()  # loads the script
    rounds = []
    for number in range(ROUNDS):
        before = _state(server)
        for call in prepared[1 + number * size : 1 + (number + 1) * size]:
            call()
        used = (now - then for now, then in zip(_state(server), before, strict=True))
        rounds.append([value / size for value in used])
    return Cost(*map(min, zip(*rounds, strict=True)))


def _state(server: redis.Redis) -> Cost:
    cpu: Any = server.info("cpu")
    stats: Any = server.info("stats")
    commands: Any = server.info("commandstats")
    return Cost(
        1e6 * (float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])),
        float(commands.get("cmdstat_evalsha", {}).get("usec", 0)),
        sum(int(one["calls"]) for one in commands.values()),
        stats["total_net_input_bytes"],
        stats["total_net_output_bytes"],
    )
