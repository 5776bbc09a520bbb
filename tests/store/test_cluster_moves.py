"""The hash slot of our keys moves to another node while calls are made."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_throttle import Limiter, StoreUnavailableError
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call, script
from tests.ends import MakeEnd
from tests.servers.cluster import Cluster, Node, has_slot
from tests.servers.server import wait_until
from tests.store.queue import Queue
from tests.workers import StartWorker

LIMITS = {"api": "1/h burst 100"}

#: Long enough for any move on a busy machine.
PATIENT = 30.0


@pytest.fixture
def moved(cluster: Cluster) -> Iterator[Cluster]:
    """The slot may be elsewhere, and on its way, at the end of the test, which may have failed."""
    owner = cluster.owner
    yield cluster
    found = cluster.owner_of(cluster.slot)
    if found is not owner:
        cluster.begin_move(found, owner)
        cluster.move_keys(found, owner)
        cluster.end_move(found, owner)
    cluster.owner = owner


def other_master(cluster: Cluster) -> Node:
    return next(one for one in cluster.nodes if one not in (cluster.owner, cluster.replica))


@pytest.fixture(params=["ip", "unknown-endpoint", "hostname"])
def naming(request: pytest.FixtureRequest, moved: Cluster) -> Iterator[Cluster]:
    with moved.naming(request.param):
        yield moved


def test_calls_wait_while_the_keys_are_moved(naming: Cluster, end_of: MakeEnd) -> None:
    cluster = naming
    limiter = Limiter(cluster.url, LIMITS, timeout=PATIENT)
    end = end_of(limiter)
    end["api"].try_acquire()
    source, target = cluster.owner, other_master(cluster)
    for one, other, remaining in ((source, target, 98), (target, source, 97)):
        with redis.Redis(port=other.port) as client:
            client.script_flush()
        cluster.begin_move(one, other)
        cluster.move_keys(one, other, Keys().limits)  # the state stays
        refused = one.refused("TRYAGAIN")

        def finish() -> None:
            wait_until(lambda: one.refused("TRYAGAIN") > refused + 1, "a call that waits")  # noqa: B023
            cluster.move_keys(one, other)  # noqa: B023
            cluster.end_move(one, other)  # noqa: B023

        with finishing(finish):
            assert end["api"].try_acquire().remaining == remaining
        assert not limiter.store.breaker.is_open


def test_nodes_that_name_each_other(moved: Cluster, end_of: MakeEnd) -> None:
    limiter = Limiter(moved.url, LIMITS, timeout=PATIENT)
    end = end_of(limiter)
    end["api"].try_acquire()
    source, target = moved.owner, other_master(moved)
    moved.begin_move(source, target)
    moved.move_keys(source, target)
    source.do("SETSLOT", moved.slot, "NODE", target.id)
    refused = target.refused("MOVED")

    def goes_round() -> bool:
        # On a busy machine the nodes may agree before the call is made.
        return target.refused("MOVED") > refused + 1 or has_slot(target, moved.slot, target)

    def finish() -> None:
        wait_until(goes_round, "a call that goes round")
        moved.end_move(source, target)
        moved.owner = target

    with finishing(finish):
        assert end["api"].try_acquire().remaining == 98


def test_a_call_of_a_loop_waits_while_another_one_leaves_their_connection(
    moved: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_throttle.store.steps._FIRST_WAIT", 1.0)
    monkeypatch.setattr("celery_throttle.store.steps._LONGEST_WAIT", 1.0)
    source, target = moved.owner, other_master(moved)

    async def calls() -> None:
        limiter = Limiter(moved.url, LIMITS, timeout=PATIENT)
        await limiter["api"].atry_acquire()
        moved.begin_move(source, target)
        moved.move_keys(source, target, Keys().limits)
        refused = source.refused("TRYAGAIN")
        waiting = asyncio.ensure_future(limiter["api"].atry_acquire())
        is_refused = lambda: source.refused("TRYAGAIN") > refused  # noqa: E731
        await asyncio.to_thread(wait_until, is_refused, "a call that waits")
        moved.move_keys(source, target)
        moved.end_move(source, target)
        moved.owner = target
        assert (await limiter["api"].atry_acquire()).remaining == 98
        assert not waiting.done()
        assert (await waiting).remaining == 97
        await limiter.store.aclose()

    asyncio.run(calls())


def test_a_move_that_takes_longer_than_a_call_may(moved: Cluster, end_of: MakeEnd) -> None:
    end = end_of(Limiter(moved.url, LIMITS, timeout=0.2))
    end["api"].try_acquire()
    source, target = moved.owner, other_master(moved)
    moved.begin_move(source, target)
    moved.move_keys(source, target, Keys().limits)
    with pytest.raises(StoreUnavailableError, match="TRYAGAIN"):
        end["api"].try_acquire()
    moved.move_keys(source, target)
    with pytest.raises(StoreUnavailableError):
        end["api"].try_acquire()
    moved.end_move(source, target)
    moved.owner = target

    def passes() -> bool:
        try:
            return bool(end["api"].try_acquire().remaining == 98)
        except StoreUnavailableError:  # the circuit breaker is open for a second
            return False

    wait_until(passes, "a call that passes")


def test_a_script_never_sees_only_a_part_of_the_keys(moved: Cluster) -> None:
    index, waiting = Keys().waiting_list_index("api"), "{throttle}:waiting"
    call = Call(script("list_queues"), [index], ["0"])
    with moved.client() as client:
        client.sadd(index, waiting)
        client.hset(waiting, "line", b"\x91\xa3due")  # a packed list of one key
    store = Store(moved.url, timeout=PATIENT)
    expected = store.run(call)
    assert expected[2] == 1
    source, target = moved.owner, other_master(moved)
    moved.begin_move(source, target)
    moved.move_keys(source, target, index)
    refused = source.refused("ASK")

    def finish() -> None:
        wait_until(lambda: source.refused("ASK") > refused, "a call that is redirected")
        moved.move_keys(source, target)
        moved.end_move(source, target)
        moved.owner = target

    with finishing(finish):
        assert store.run(call) == expected
    with moved.client() as client:
        client.delete(index, waiting)


@pytest.fixture(params=["key by key", "atomic"])
def atomic(request: pytest.FixtureRequest, moved: Cluster) -> bool:
    """The way in which a slot moves."""
    if request.param == "atomic" and not moved.moves_at_once:
        pytest.skip("CLUSTER MIGRATESLOTS needs Valkey 9")
    return bool(request.param == "atomic")


def test_a_move_under_load(moved: Cluster, *, atomic: bool) -> None:
    source = moved.owner
    calls_pass(moved, lambda: moved.move(atomic=atomic))
    assert moved.owner is not source


def test_a_planned_failover_under_load(cluster: Cluster) -> None:
    for _ in range(2):
        calls_pass(cluster, cluster.hand_over)
        with cluster.client() as client:
            client.flushall()


def calls_pass(moved: Cluster, change: Callable[[], None]) -> None:
    """Every call passes while another node gets the keys, and none is executed twice."""
    limits = {"api": "1/h burst 1000000", "tenant": "1/h burst 1000"}
    limiter = Limiter(moved.url, limits, timeout=PATIENT)
    for tenant in range(200):  # keys to be moved
        limiter["tenant", tenant].acquire()
    ended = threading.Event()

    def load() -> tuple[int, float]:
        count, longest = 0, 0.0
        while not ended.is_set():
            began = time.perf_counter()
            assert limiter["api"].try_acquire()
            longest = max(longest, time.perf_counter() - began)
            count += 1
        return count, longest

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load) for _ in range(4)]
        try:
            began = time.perf_counter()
            change()
            seconds = time.perf_counter() - began
            seen = _calls(moved.owner)
            wait_until(lambda: _calls(moved.owner) > seen + 100, "calls of the new node")
        finally:
            ended.set()
        results = [one.result() for one in loads]
    print(f"moved in {seconds:.3f} s; longest call {max(one for _, one in results):.3f} s")
    assert limiter["api"].peek().remaining == 1_000_000 - sum(count for count, _ in results)
    assert all(limiter["tenant", tenant].peek().remaining == 999 for tenant in range(200))
    assert not limiter.store.breaker.is_open


def _calls(node: Node) -> int:
    with node.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.mark.thorough
@pytest.mark.workers
def test_a_line_drains_while_its_slot_moves(
    moved: Cluster, redis_url: str, start_worker: StartWorker, *, atomic: bool
) -> None:
    queue = Queue(redis_url, moved.url, redis_url)
    env = queue.env | {"THROTTLE_TIMEOUT": str(PATIENT)}
    worker = start_worker("tests.apps.stores", redis_url, env=env)
    queue.tasks_wait(400)
    queue.let_go()
    wait_until(lambda: len(queue.noted("runs")) >= 20, "tasks that run")
    moved.move(atomic=atomic)
    assert len(queue.noted("runs")) < 400  # the line was in use
    queue.tasks_run()
    assert "OUTAGE" not in worker.log()


class finishing:  # noqa: N801  # used as a context
    """Does something in another thread during a block, and raises its error at the end."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._action = action

    def __enter__(self) -> None:
        self._future = self._pool.submit(self._action)

    def __exit__(self, *_: object) -> None:
        self._future.result()
        self._pool.shutdown()
