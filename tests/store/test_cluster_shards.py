"""Shards on all nodes of a cluster: what happens to one node is felt by its shards only."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_throttle import Limiter, StoreUnavailableError
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import Shard, ShardEntry
from celery_throttle.store.client import Store
from celery_throttle.store.keys import DEFAULT_PREFIX, shard_prefix
from tests.servers.cluster import Cluster, Node
from tests.servers.server import replicate, wait_until

ENTRY = ShardEntry("tenants", ("tenant",), 6)
SHARDS = {"tenants": {"limits": ["tenant"], "by_key": 6}}
BURST = 1_000_000

#: A key of each shard.
KEYS = {ENTRY.shard_of(LimitRef("tenant", str(key))): key for key in range(100)}

#: Long enough for any move on a busy machine.
PATIENT = 30.0


class Site:
    """A limiter with two shards on each of the three nodes."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.limiter = Limiter(
            cluster.url, {"tenant": f"1/h burst {BURST}"}, shards=SHARDS, timeout=timeout
        )
        parts = self.limiter.parts
        assert parts is not None
        self.stores: dict[Shard, Store] = {shard: parts[shard].store for shard in KEYS}
        self.slots = {shard: cluster.slot_of(shard_prefix(DEFAULT_PREFIX, shard)) for shard in KEYS}
        for shard in KEYS:
            assert self.handle(shard).try_acquire()
        self.taken = Counter(dict.fromkeys(KEYS, 1))

    def handle(self, shard: Shard) -> LimitHandle:
        return self.limiter["tenant", KEYS[shard]]

    def check(self, unanswered: Counter[Shard] | None = None) -> None:
        """Check that each call of which there is a decision was executed once.

        Of the calls without an answer, each may have been executed.
        """
        for shard in KEYS:
            used = BURST - self.handle(shard).peek().remaining
            most = 0 if unanswered is None else unanswered[shard]
            assert self.taken[shard] <= used <= self.taken[shard] + most

    def load(self, ended: threading.Event) -> None:
        """Call all shards in turn until the end."""
        while not ended.is_set():
            for shard in KEYS:
                assert self.handle(shard).try_acquire()
                self.taken[shard] += 1

    async def aload(self, ended: threading.Event) -> None:
        """Call all shards together until the end, some calls in one round trip."""

        async def call(shard: Shard) -> None:
            assert await self.handle(shard).atry_acquire()
            self.taken[shard] += 1

        while not ended.is_set():
            await asyncio.gather(*(call(shard) for shard in KEYS for _ in range(3)))
        for store in (self.limiter.store, *self.stores.values()):
            await store.aclose()

    def close(self) -> None:
        for store in (self.limiter.store, *self.stores.values()):
            store.close()


@pytest.fixture
def make_site(cluster: Cluster) -> Iterator[Callable[[float], Site]]:
    sites: list[Site] = []

    def make(timeout: float) -> Site:
        sites.append(Site(cluster, timeout))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def test_shards_on_one_node_share_its_connection(
    cluster: Cluster, make_site: Callable[[float], Site]
) -> None:
    before = {node.port: node.connections() for node in cluster.masters()}
    site = make_site(PATIENT)
    for shard in KEYS:
        assert site.handle(shard).try_acquire()
    new = {node.port: len(node.connections() - before[node.port]) for node in cluster.masters()}
    assert new == dict.fromkeys(before, 1)
    assert not any(store.generation > 1 for store in site.stores.values()), "more than one MOVED"


def test_a_connection_that_one_shard_finds_closed_is_news_to_the_others(
    cluster: Cluster, make_site: Callable[[float], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server may reply behind the address, without the last writes."""
    monkeypatch.setattr("celery_throttle.store.connection.FRESH_SECONDS", -1.0)
    site = make_site(PATIENT)
    near = [shard for shard in KEYS if cluster.owner_of(site.slots[shard]) is cluster.owner]
    before = {shard: store.generation for shard, store in site.stores.items()}
    with cluster.client() as client:
        client.client_kill_filter(_type="normal")
    assert site.handle(near[0]).try_acquire()
    changed = {shard for shard, store in site.stores.items() if store.generation > before[shard]}
    assert changed == {*near}
    assert site.handle(near[1]).try_acquire()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "key by key"])
def test_the_slot_of_a_shard_moves(
    cluster: Cluster, make_site: Callable[[float], Site], kind: str, *, atomic: bool
) -> None:
    """MOVED, ASK and TRYAGAIN: every call passes, and no other shard connects anew."""
    if atomic and not cluster.moves_at_once:
        pytest.skip("CLUSTER MIGRATESLOTS needs Valkey 9")
    site, ended = make_site(PATIENT), threading.Event()
    moved = next(iter(KEYS))
    for number in range(200):  # keys to be moved
        site.limiter["tenant", f"{KEYS[moved]}/{number}"].try_acquire()
    source = cluster.owner_of(site.slots[moved])
    target = next(node for node in cluster.masters() if node is not source)
    before = {shard: store.generation for shard, store in site.stores.items()}

    def change() -> None:
        wait_until(lambda: site.taken[moved] > 5, "calls")
        cluster.move_slot(site.slots[moved], source, target, atomic=atomic)
        seen = site.taken[moved]
        wait_until(lambda: site.taken[moved] > seen + 5, "calls of the new node")
        cluster.move_slot(site.slots[moved], target, source, atomic=atomic)
        seen = site.taken[moved]
        wait_until(lambda: site.taken[moved] > seen + 5, "calls of the old node")

    with ThreadPoolExecutor(2) as pool:
        run = site.load if kind == "threads" else lambda ended: asyncio.run(site.aload(ended))
        load = pool.submit(run, ended)
        try:
            pool.submit(change).result()
        finally:
            ended.set()
        load.result()
    site.check()
    after = {shard: store.generation for shard, store in site.stores.items()}
    assert after.pop(moved) > before.pop(moved)
    assert after == before
    assert not any(store.breaker.is_open for store in site.stores.values())


@pytest.mark.thorough
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "partitioned"])
def test_only_the_shards_of_a_lost_node_have_an_outage(
    cluster: Cluster, make_site: Callable[[float], Site], by: signal.Signals
) -> None:
    site = make_site(1.0)
    lost = {shard for shard in KEYS if cluster.owner_of(site.slots[shard]) is cluster.owner}
    assert len(lost) == 2
    refused: Counter[Shard] = Counter()
    served = 0  # before the first refusal, by the master
    begun = calls_of(cluster.owner) - sum(site.taken[shard] for shard in lost)
    master, moved = cluster.owner, cluster.masters()
    moved.remove(master)
    redirected = sum(node.refused("MOVED") for node in moved)

    def call_all() -> set[Shard]:
        nonlocal served
        passed = set()
        for shard in KEYS:
            try:
                assert site.handle(shard).try_acquire()
            except StoreUnavailableError:  # noqa: PERF203  # one at a time
                served = served or sum(site.taken[one] for one in lost)
                refused[shard] += 1
            else:
                passed.add(shard)
                site.taken[shard] += 1
        return passed

    replicate(cluster.owner, cluster.replica)
    try:
        with ThreadPoolExecutor(1) as pool:
            failover = pool.submit(cluster.fail_over, by=by)
            while not failover.done():
                assert call_all() >= {*KEYS} - lost
            failover.result()
        assert {*refused} == lost
        # A node that is named and is lost is tried once, and no call waits for it.
        assert sum(node.refused("MOVED") for node in moved) - redirected <= 2 * refused.total() + 2
        wait_until(lambda: call_all() == {*KEYS}, "calls of the new master")
        site.check(refused)
    finally:
        cluster.heal()
    if by == signal.SIGSTOP:
        assert calls_of(master) - begun - served <= 1, "calls that waited in vain"


def calls_of(node: Node) -> int:
    with node.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])
