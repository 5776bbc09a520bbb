"""How few round trips the gate needs, and that none of the units it takes is used twice or late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import StoreUnavailableError, Throttle
from celery_throttle.limiter import as_ref
from celery_throttle.scope import LimitRef
from celery_throttle.worker import gate, quota
from celery_throttle.worker.blocks import HORIZON
from celery_throttle.worker.gate import GATHER, Gate
from celery_throttle.worker.quota import BATCH, Quota
from celery_throttle.worker.request import GatedRequest

Refs = tuple[LimitRef, ...]


class Request(GatedRequest):
    """A request as far as the gate looks at one that it lets pass."""

    def __init__(self, task: Any, tenant: int) -> None:
        self.task, self.id, self.expires = task, f"task-{tenant}", None
        self.args, self.kwargs = (tenant,), dict[str, Any]()
        self.message, self.delivery_info = SimpleNamespace(), dict[str, Any]()


class Bench:
    """A throttle on a real server, the time at a stand, and the calls that were made."""

    def __init__(self, app: Celery, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        for module in (quota, gate):
            clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _: None)
            monkeypatch.setattr(module, "time", clock)
        limits = {"tenant": "1/m", "bulk": "100/s burst 200", "never": "1/h"}
        self.throttle = Throttle(app, limits=limits, url=url)
        self.throttle.register()
        self.waiting: list[Any] = []
        self.quota = Quota(self.throttle, lambda: self.waiting)
        self.calls = 0
        begin = self.throttle.store.begin

        def counted(call: Any) -> Any:
            self.calls += 1
            return begin(call)

        monkeypatch.setattr(self.throttle.store, "begin", counted)

    def take(self, refs: Refs) -> float | None:
        """What the gate does for one task."""
        wait = self.quota.in_hand(refs, 1)
        return self.quota.take(refs, 1) if wait is None else wait

    def make_busy(self) -> None:
        """Let so many tasks pass that the next are expected within 20 ms."""
        for _ in range(4 * BATCH):
            assert self.take((as_ref("bulk"),)) == 0.0
        self.quota._ahead = None
        self.calls = 0

    def requests(self, task: Any, tenants: range) -> list[Request]:
        return [Request(task, tenant) for tenant in tenants]


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", set_as_current=False) as app:
        yield app


@pytest.fixture
def bench(app: Celery, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(app, redis_url, monkeypatch)


@pytest.fixture
def task(bench: Bench) -> Any:
    @bench.throttle.app.task(name="mail", throttle="tenant:{tenant}", lazy=False, shared=False)
    def mail(tenant: int) -> None: ...

    return mail


def refs(tenant: int) -> Refs:
    return (as_ref(("tenant", tenant)),)


def test_units_of_a_busy_limit_come_in_blocks(bench: Bench) -> None:
    bench.make_busy()
    taken = [bench.take((as_ref("bulk"),)) for _ in range(100)]
    assert taken == [0.0] * 100
    assert bench.calls < 10


def test_a_task_asks_for_those_that_wait_as_well(bench: Bench, task: Any) -> None:
    bench.make_busy()
    for tenant in range(6):
        bench.waiting = bench.requests(task, range(tenant + 1, 6))
        assert bench.take(refs(tenant)) == 0.0
    assert bench.calls == 1
    # Each was taken once, and none twice.
    bench.now += 1
    assert [bench.take(refs(tenant)) for tenant in range(6)] == [None] * 6


def test_a_worker_with_time_asks_for_each_task_alone(bench: Bench, task: Any) -> None:
    bench.waiting = bench.requests(task, range(1, 6))
    assert bench.take(refs(0)) == 0.0
    bench.now += 1
    bench.waiting = bench.waiting[1:]
    assert bench.take(refs(1)) == 0.0
    assert bench.calls == 2


def test_the_next_call_is_sent_before_a_task_needs_it(bench: Bench, task: Any) -> None:
    bench.make_busy()
    requests = bench.requests(task, range(20))
    for number in range(20):
        bench.waiting = requests[number + 1 : number + 6]
        assert bench.take(refs(number)) == 0.0
    assert 4 <= bench.calls <= 8
    ahead = bench.quota._ahead
    bench.waiting = []
    bench.now += 1
    taken = [bench.take(refs(tenant)) for tenant in range(20)]
    assert taken == [None] * 20, ahead


def test_what_was_asked_ahead_is_not_used_after_20_ms(bench: Bench, task: Any) -> None:
    bench.make_busy()
    bench.waiting = bench.requests(task, range(1, 4))
    assert bench.take(refs(0)) == 0.0
    bench.waiting = bench.requests(task, range(4, 8))
    assert bench.take(refs(1)) == 0.0
    assert bench.quota._ahead is not None
    bench.waiting = []
    bench.now += HORIZON + 0.001
    # Its unit was taken at the server, so there is none left; that it was lost harms nobody.
    assert bench.take(refs(4)) is None


def test_a_call_ahead_that_fails_is_left_to_the_task_itself(
    bench: Bench, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.make_busy()
    bench.waiting = bench.requests(task, range(1, 3))
    assert bench.take(refs(0)) == 0.0
    bench.waiting = bench.requests(task, range(3, 8))

    def fail(*_: Any) -> Any:
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(bench.throttle.store, "begin", fail)
        assert bench.take(refs(1)) == 0.0
    assert bench.take(refs(2)) == 0.0
    assert bench.quota._ahead is not None
    with monkeypatch.context() as broken:
        broken.setattr(bench.throttle.store, "finish", fail)
        with pytest.raises(StoreUnavailableError):
            bench.take(refs(3))


def test_a_full_limit_is_not_asked_again_at_once(bench: Bench) -> None:
    never = (as_ref("never"),)
    assert bench.take(never) == 0.0
    assert [bench.take(never) for _ in range(50)] == [None] * 50
    assert bench.calls == 2
    bench.now += HORIZON + 0.001
    assert bench.take(never) is None
    assert bench.calls == 3


#: Where a message came from matters to those that are parked.
NOWHERE: Any = None


class Pool:
    """Brings tasks to a gate as Celery does: those without a process free wait."""

    def __init__(self, bench: Bench) -> None:
        self.started: list[Any] = []
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.gate = Gate(
            bench.throttle,
            NOWHERE,
            waiting=list,
            parked=lambda _: None,
            bring=self.bring,
            later=lambda *timer: self.timers.append(timer),
        )
        bench.quota = self.gate._quota

    def bring(self, request: Any) -> None:
        if self.gate.admit(request):
            self.started.append(request)


def test_tasks_that_come_fast_but_one_by_one_are_gathered(bench: Bench, task: Any) -> None:
    pool = Pool(bench)
    bench.make_busy()
    requests = bench.requests(task, range(BATCH + 1))
    for request in requests[:-1]:
        pool.bring(request)
    assert pool.started == []
    assert [timer[0] for timer in pool.timers] == [GATHER]
    pool.bring(requests[-1])
    assert pool.started == requests
    assert bench.calls == 1


def test_they_are_gathered_for_some_milliseconds_at_most(bench: Bench, task: Any) -> None:
    pool = Pool(bench)
    bench.make_busy()
    requests = bench.requests(task, range(3))
    for request in requests:
        pool.bring(request)
    ((_, call, args),) = pool.timers
    call(*args)
    assert pool.started == requests
    assert bench.calls == 1


def test_tasks_that_come_slowly_are_not_gathered(bench: Bench, task: Any) -> None:
    pool = Pool(bench)
    for request in bench.requests(task, range(5)):
        bench.now += 0.01
        pool.bring(request)
    assert len(pool.started) == 5
    assert pool.timers == []
