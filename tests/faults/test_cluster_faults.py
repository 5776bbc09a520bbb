"""Shards on a cluster of three masters and three replicas: nodes are lost, and slots move.

The 200 keys of a limit are divided among six shards, two on each node.
"""

from __future__ import annotations

import signal
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_throttle import Limiter
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import Shard, ShardEntry
from celery_throttle.store.keys import DEFAULT_PREFIX, shard_prefix
from tests.faults.bench import Bench
from tests.faults.scale import scaled
from tests.faults.verdict import Faults, Verdict, judge
from tests.servers.cluster import Cluster, Node
from tests.servers.server import valkey_command

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(900)]

KEYS = 200
TASKS = max(40, scaled(100)) * KEYS
RATE = 1
LEASE = 6.0
ENTRY = ShardEntry("tenants", ("mail",), 6)
LIMITS = {"mail": f"{RATE}/s outage closed"}
SHARDS = {"tenants": {"limits": ["mail"], "by_key": 6}}
CONF = {
    "throttle_lease": LEASE,
    "throttle_limits": LIMITS,
    "throttle_shards": SHARDS,
    "throttle_replicas": 1,
}

#: Units that a failover may grant twice of each key: burst + rate x lag, with a lag below 1 s.
TWICE = 1

#: Seconds before the faults in which the rate of the others is measured.
CALM = 10

#: Least rate of the others during a fault, of their rate before it. A quiet machine has 0.98.
OTHERS = 0.85

#: Seconds between two tasks without limits.
PLAIN_INTERVAL = 0.02

Span = tuple[float, float]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(valkey_command(), tmp_path, each=True)
    yield cluster
    cluster.stop()


class Slots:
    """Where the shards of the keys are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_shard = {
            shard: cluster.slot_of(shard_prefix(DEFAULT_PREFIX, shard)) for shard in ENTRY.shards
        }

    def shards_on(self, node: Node) -> set[Shard]:
        return {
            shard for shard, slot in self.by_shard.items() if self._cluster.owner_of(slot) is node
        }

    def keys_of(self, shards: set[Shard]) -> list[int]:
        return [key for key in range(KEYS) if ENTRY.shard_of(LimitRef("mail", f"t{key}")) in shards]


class PlainTasks:
    """Tasks without limits, which are sent in a thread to the workers of a bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._sent: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ended.wait(PLAIN_INTERVAL):
            self._sent.append(self._bench.now())
            self._bench.send("plain", [len(self._sent) - 1])

    def wait_until_started(self) -> None:
        self._bench.until_started("plain", len(self._sent))

    def delays(self, span: Span) -> list[float]:
        """Return the seconds from the send to the start of those sent in a span, in order."""
        starts = {row["number"]: row["at"] for row in reversed(self._bench.starts("plain"))}
        sent = enumerate(self._sent)
        return sorted(starts[number] - at for number, at in sent if span[0] <= at <= span[1])


def lose(cluster: Cluster, bench: Bench, master: Node, by: signal.Signals) -> Span:
    """Lose a master until its replica has taken over, and bring it back; return that time."""
    replica = cluster.replica_of[master]
    began = bench.now()
    cluster.lose(master, replica, by)
    ended = bench.now()
    time.sleep(1)
    cluster.bring_back(master, replica)
    return began, ended


def move(cluster: Cluster, bench: Bench, slot: int) -> Span:
    """Move a slot to another master and back, in each way."""
    source = cluster.owner_of(slot)
    target = next(node for node in cluster.masters() if node is not source)
    began = bench.now()
    for atomic in (False, True)[: 1 + cluster.moves_at_once]:
        cluster.move_slot(slot, source, target, atomic=atomic)
        time.sleep(1)
        cluster.move_slot(slot, target, source, atomic=atomic)
        time.sleep(1)
    return began, bench.now()


def counts(bench: Bench) -> Counter[int]:
    """The starts of each key."""
    found = Counter(dict.fromkeys(range(KEYS), 0))
    found.update(row["number"] % KEYS for row in bench.starts("mailed"))
    return found


def rate_in(span: Span, times: Sequence[float]) -> float:
    """Starts a second of one key, with the fractions of the steps that begin or end outside."""
    before, after = (_starts_until(at, times) for at in span)
    return (after - before) / (span[1] - span[0])


def _starts_until(at: float, times: Sequence[float]) -> float:
    number = bisect_right(times, at)
    assert 0 < number < len(times), "the line was in use"
    return number + (at - times[number - 1]) / (times[number] - times[number - 1])


def test_nodes_are_lost_and_slots_move(
    redis_url: str, cluster: Cluster, conclude: Callable[[Verdict], None]
) -> None:
    slots = Slots(cluster)
    first, second, third = cluster.masters()
    shards = {node: slots.shards_on(node) for node in (first, second, third)}
    assert [len(some) for some in shards.values()] == [2, 2, 2]
    moved = min(shards[third])
    with Bench(redis_url, cluster.url, conf=CONF, loglevel="WARNING") as bench:
        for number in range(TASKS):
            bench.send("mailed", [number], f"t{number % KEYS}")
        limiter = Limiter(cluster.url, LIMITS, shards=SHARDS)
        limiter.register()
        limiter["mail"].pause(None)
        bench.start_workers(2)
        bench.until(lambda: not bench.records.exists(bench.queue), "an empty queue", seconds=300)
        limiter["mail"].resume()
        bench.until(lambda: min(counts(bench).values()) >= 8, "starts of each key", seconds=300)
        with PlainTasks(bench) as plain:
            time.sleep(CALM)
            before = bench.now() - CALM, bench.now()
            spans = {
                "killed": (first, lose(cluster, bench, first, signal.SIGKILL)),
                "partitioned": (second, lose(cluster, bench, second, signal.SIGSTOP)),
                "moved": (third, move(cluster, bench, slots.by_shard[moved])),
            }
        plain.wait_until_started()
        delays = {name: plain.delays(span) for name, (_, span) in spans.items()}
        delays["before"] = plain.delays(before)
        bench.until_started("mailed", TASKS, seconds=300)
        time.sleep(LEASE)
        starts = bench.starts("mailed")
        lost_shards = {row["prefix"] for row in bench.rows("modes") if row["mode"] == "outage"}
    by_key: dict[int, list[float]] = defaultdict(list)
    for row in starts:
        by_key[row["number"] % KEYS].append(row["at"])

    def rate(span: Span, some: set[Shard]) -> float:
        keys = slots.keys_of(some)
        return sum(rate_in(span, by_key[key]) for key in keys) / len(keys) / RATE

    usual = rate(before, {*ENTRY.shards})
    print(f"quota used before the faults: {usual:.3f}")
    for name, (node, span) in spans.items():
        others = rate(span, {*ENTRY.shards} - shards[node])
        own = rate(span, shards[node])
        print(
            f"{name}, {span[1] - span[0]:.1f} s: others {others:.3f} ({others / usual:.3f} of "
            f"before), its own {own:.3f}"
        )
        assert others / usual >= OTHERS, "a lost node holds up no tasks of other nodes"
    for name, some in delays.items():
        median, p99 = (1000 * some[int(share * len(some))] for share in (0.5, 0.99))
        print(f"{len(some)} plain tasks, {name}: {median:.1f} ms, 99% {p99:.1f} ms at most")
    # A move key by key may take longer than a call waits.
    felt = {shard_prefix(DEFAULT_PREFIX, one) for one in {*shards[first], *shards[second], moved}}
    assert lost_shards <= {*felt, DEFAULT_PREFIX}
    lost = [span for _, span in spans.values()]
    conclude(
        judge(
            "nodes of a cluster lost, slots moved",
            range(TASKS),
            starts,
            Faults({}, lost),
            rate=RATE,
            slack=TWICE,
            lease=LEASE,
            key_of=lambda row: row["number"] % KEYS,
        )
    )
