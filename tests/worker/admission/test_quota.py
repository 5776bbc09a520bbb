"""How few round trips the gate needs, and that none of the units it takes is used twice or late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakSet

import pytest
from celery import Celery
from celery.worker import state
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle import LimitByKey, StoreError, Throttle, UnknownLimitError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.worker import task_state
from celery_throttle.worker.admission import booking, gate, quota, refunds
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.admission.lookups import KeyLookups
from celery_throttle.worker.admission.quota import Block, Quota
from celery_throttle.worker.admission.refunds import Refunds
from celery_throttle.worker.admission.request_limits import limits_of
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.demand import Demand
from celery_throttle.worker.health import loop_calls
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.request import GatedRequest
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS as HORIZON
from celery_throttle.worker.tuning import (
    GATHER_SECONDS,
    PARKED_MEMORY_SECONDS,
    QUOTA_CACHE_SIZE,
)
from celery_throttle.worker.tuning import QUOTA_BATCH_SIZE as BATCH
from celery_throttle.worker.waiting import park
from celery_throttle.worker.waiting.park import ParkingPolicy
from tests.servers.server import wait_until

MILLION = 1_000_000


class Request(GatedRequest):
    """A request as far as the gate looks at one that it lets pass."""

    def __init__(self, task: Any, tenant: int) -> None:
        self.task, self.id, self.expires = task, f"task-{tenant}", None
        self.args, self.kwargs = (tenant,), dict[str, Any]()
        self.message, self.delivery_info = SimpleNamespace(body=b""), dict[str, Any]()
        self.acknowledged = False
        self.request_dict = dict[str, Any]()
        self.throttle_state = TaskState(self)

    def revoked(self) -> bool:
        return False


class Bench:
    """A throttle on a real server, the time at a stand, and the calls that were made."""

    def __init__(self, app: Celery, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        for module in (booking, quota, refunds, task_state, park, gate, loop_calls):
            clock = SimpleNamespace(
                monotonic=lambda: self.now, time=lambda: self.now, sleep=lambda _: None
            )
            monkeypatch.setattr(module, "time", clock)
        limits: dict[str, Any] = {
            "tenant": "1/m",
            "bulk": "100/s burst 200",
            "never": "1/h",
            "deep": "1000000/d using fixed-window",
            "both": ["1/h burst 200", "1000/d using fixed-window"],
            "window": "1000/s using fixed-window",
            "ten": "10 at once",
            "plan": LimitByKey("1/m", lambda _: "2/m"),
        }
        self.throttle = Throttle(app, limits=limits, url=url)
        self.throttle.register()
        self.waiting: list[Any] = []
        #: The calls that the timers make later.
        self.timers: list[Callable[[], None]] = []
        timers: Any = SimpleNamespace(
            call_after=self._call_after, call_soon=lambda call, *args: call(*args)
        )
        calls = LoopCalls(IN_PLACE)
        self.refunds = Refunds(self.throttle, calls, timers, threading.RLock())
        self.lookups = KeyLookups(self.throttle, timers, NOWHERE)
        self.quota = Quota(
            self.throttle,
            calls,
            self.refunds,
            queued=lambda: self.waiting,
            limits_of=partial(limits_of, self.throttle),
            are_known=self.lookups.are_known,
        )
        self.calls = 0
        run = self.throttle.store.run

        def counted(call: Any) -> Any:
            self.calls += 1
            return run(call)

        monkeypatch.setattr(self.throttle.store, "run", counted)

    def _call_after(self, _: float, call: Callable[..., None], args: Any = ()) -> object:
        self.timers.append(partial(call, *args) if args else call)
        return call

    def book(self, request: Request, requirement: Requirement) -> None:
        start = self.use(requirement) or self.quota.take(requirement, NOWHERE)
        assert start
        request.throttle_state.book(start)

    def use(self, requirement: Requirement) -> Start | None:
        return self.quota.use(requirement, self.now)

    def take(self, requirement: Requirement) -> float | None:
        """What the gate does for one task, which starts in time: return the seconds until then."""
        start = self.use(requirement) or self.quota.take(requirement, NOWHERE)
        if start is None:
            return None
        start.use()
        return max(0.0, start.at - self.now)

    def make_busy(self) -> None:
        """Let so many tasks pass that the next are expected within 20 ms."""
        for _ in range(4 * BATCH):
            assert self.take(one("bulk")) == 0.0
        self.calls = 0

    def requests(self, task: Any, tenants: range) -> list[Request]:
        return [Request(task, tenant) for tenant in tenants]


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", set_as_current=False) as app:
        yield app


@pytest.fixture
def bench(app: Celery, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(app, redis_url, monkeypatch)
    yield bench
    bench.throttle.store.close()


@pytest.fixture
def bulk_task(bench: Bench) -> Any:
    @bench.throttle.app.task(name="bulk", throttle="bulk", lazy=False, shared=False)
    def bulk(number: int) -> None: ...

    return bulk


@pytest.fixture
def task(bench: Bench) -> Any:
    @bench.throttle.app.task(name="mail", throttle="tenant:{tenant}", lazy=False, shared=False)
    def mail(tenant: int) -> None: ...

    return mail


def one(name: str, cost: int = MILLION) -> Requirement:
    return Requirement((LimitRef(name, None),), (cost,))


def tenant_of(tenant: int) -> Requirement:
    return Requirement((LimitRef("tenant", str(tenant)),), (MILLION,))


def test_units_of_a_busy_limit_come_in_blocks(bench: Bench) -> None:
    bench.make_busy()
    taken = [bench.take(one("bulk")) for _ in range(100)]
    assert taken == [0.0] * 100
    assert bench.calls < 10


def test_what_several_limits_allow_is_taken_one_by_one(bench: Bench) -> None:
    bench.make_busy()
    assert [bench.take(one("both")) for _ in range(20)] == [0.0] * 20
    assert bench.calls >= 20
    assert bench.throttle["both"].peek(0).remaining == 180


def test_another_cost_has_blocks_of_its_own(bench: Bench) -> None:
    """Of what was taken for half a unit, nothing is used for a whole one."""
    halves = one("deep", MILLION // 2)
    assert [bench.take(halves) for _ in range(30)] == [0.0] * 30
    held = bench.quota._blocks[halves]
    assert held.starts > held.used
    assert held.lasts(bench.now)
    assert bench.take(one("deep")) == 0.0
    assert bench.quota._blocks[halves] is held
    used = 30 / 2 + 1
    left = (held.starts - held.used) / 2
    assert 1_000_000 - bench.throttle["deep"].peek(0).remaining >= used + left


def test_what_is_left_of_a_window_is_not_used_in_the_next(bench: Bench) -> None:
    window = one("window")
    bench.make_busy()
    taken = [bench.take(window) for _ in range(40)]
    assert taken.count(0.0) + taken.count(None) == 40  # none is booked within a window
    for block in bench.quota._blocks.values():
        assert block.lifetime <= HORIZON
    bench.now += HORIZON + 0.001
    assert bench.use(window) is None


def test_a_task_asks_for_those_that_wait_as_well(bench: Bench, task: Any) -> None:
    bench.make_busy()
    for tenant in range(6):
        bench.waiting = bench.requests(task, range(tenant + 1, 6))
        assert bench.take(tenant_of(tenant)) == 0.0
    assert bench.calls == 1
    # Each was taken once, and none twice.
    bench.now += 1
    assert [bench.take(tenant_of(tenant)) for tenant in range(6)] == [None] * 6


def test_nothing_is_taken_ahead_of_a_key_whose_limit_is_not_looked_up_yet(bench: Bench) -> None:
    """At the gate its task waits for the limit, longer than a unit taken ahead may be used."""

    @bench.throttle.app.task(name="plan", throttle="plan:{tenant}", lazy=False, shared=False)
    def plan(tenant: int) -> None: ...

    required = Requirement((LimitRef("plan", "1"),), (MILLION,))
    bench.make_busy()
    bench.waiting = bench.requests(plan, range(1, 2))
    assert bench.take(tenant_of(0)) == 0.0
    assert bench.use(required) is None
    bench.lookups.note(required.refs[0])
    wait_until(lambda: bench.lookups.are_known(required), "a limit that is in force")
    assert bench.take(tenant_of(2)) == 0.0
    assert bench.use(required)


def test_a_task_counts_once_however_often_it_comes_to_the_gate(bench: Bench) -> None:
    """So many units are taken ahead as tasks started."""
    bulk = one("bulk")
    assert bench.use(bulk) is None  # it is decided in the next round
    bench.quota.fetch([bulk], [])
    assert bench.use(bulk)
    assert bench.take(bulk) == 0.0
    assert bench.quota._blocks[bulk].starts == 2


def test_nothing_is_taken_ahead_of_tasks_that_are_further_apart_than_units_last(
    bench: Bench,
) -> None:
    for _ in range(5):
        assert bench.take(one("bulk")) == 0.0
        assert bench.quota._blocks[one("bulk")].starts == 1
        bench.now += 1.25 * HORIZON


def test_a_worker_with_time_asks_for_each_task_alone(bench: Bench, task: Any) -> None:
    bench.waiting = bench.requests(task, range(1, 6))
    assert bench.take(tenant_of(0)) == 0.0
    bench.now += 1
    bench.waiting = bench.waiting[1:]
    assert bench.take(tenant_of(1)) == 0.0
    assert bench.calls == 2


def test_units_that_no_task_used_in_time_are_given_back(bench: Bench, task: Any) -> None:
    """The worker stood still: each task starts, with the unit of its tenant, which has only one."""
    bench.make_busy()
    bench.waiting = bench.requests(task, range(1, 6))
    assert bench.take(tenant_of(0)) == 0.0
    assert bench.take(tenant_of(1)) == 0.0
    assert bench.calls == 1
    bench.now += HORIZON + 0.001
    bench.waiting = []
    assert [bench.take(tenant_of(tenant)) for tenant in (2, 3, 4, 5)] == [0.0] * 4
    bench.now += HORIZON + 0.001
    bench.refunds.give_back()
    assert [bench.take(tenant_of(tenant)) for tenant in range(6)] == [None] * 6


def test_they_are_given_back_although_no_other_task_comes(bench: Bench, task: Any) -> None:
    bench.make_busy()
    bench.waiting = bench.requests(task, range(1, 6))
    assert bench.take(tenant_of(0)) == 0.0
    (alarm,) = bench.timers
    alarm()  # they may be used at this time
    assert bench.throttle["tenant", 1].peek(0).remaining == 0
    bench.now += HORIZON + 0.001
    bench.timers[-1]()
    remaining = [bench.throttle["tenant", tenant].peek(0).remaining for tenant in range(6)]
    assert remaining == [0, 1, 1, 1, 1, 1]
    assert bench.use(tenant_of(1)) is None
    assert len(bench.timers) == 2


def test_a_unit_is_given_back_by_one_call_even_if_it_fails(bench: Bench, task: Any) -> None:
    """It may have been executed; then the unit would be given back once more."""
    bench.make_busy()
    bench.waiting = bench.requests(task, range(1, 2))
    assert bench.take(tenant_of(0)) == 0.0
    bench.now += HORIZON + 0.001
    run = bench.throttle.store.run

    def fail(call: Any) -> Any:
        run(call)
        raise StoreError("no reply")

    bench.throttle.store.run = fail  # type: ignore[method-assign,assignment]
    bench.refunds.give_back()
    bench.throttle.store.run = run  # type: ignore[method-assign]
    assert bench.take(tenant_of(1)) == 0.0
    bench.refunds.give_back()
    assert bench.throttle["tenant", 1].peek(0).remaining == 0


def test_the_unit_of_a_task_with_a_process_is_used_however_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stood still between the reply and the start."""
    call = bench.quota._call

    def stand_still(*wants: Any) -> Any:
        replies = yield from call(*wants)
        bench.now += HORIZON + 0.001
        return replies

    monkeypatch.setattr(bench.quota, "_call", stand_still)
    assert bench.take(one("never")) == 0.0


def test_a_full_limit_is_not_asked_again_at_once(bench: Bench) -> None:
    never = one("never")
    assert bench.take(never) == 0.0
    assert [bench.take(never) for _ in range(50)] == [None] * 50
    assert bench.calls == 2
    bench.now += HORIZON + 0.001
    assert bench.take(never) is None
    assert bench.calls == 3


def test_a_limit_is_not_asked_again_while_tasks_join_its_line(bench: Bench) -> None:
    """The call that parks a task decides as well, so it can be the only one."""
    never = one("never")
    assert bench.take(never) == 0.0
    assert bench.take(never) is None
    for _ in range(3):
        bench.quota.remember_refusal(never)
        bench.now += PARKED_MEMORY_SECONDS - 0.001
        assert bench.take(never) is None
    assert bench.calls == 2
    bench.quota.forget_refusal(never)
    assert bench.take(never) is None
    assert bench.calls == 3


def test_a_task_that_joined_a_line_takes_no_units_from_others(bench: Bench) -> None:
    """Units that were taken before it was refused are used."""
    bench.make_busy()
    while bench.calls == 0:
        assert bench.take(one("bulk")) is not None
    bench.quota.remember_refusal(one("bulk"))
    assert bench.use(one("bulk")) is not None


def test_a_full_cache_forgets_refusals_but_no_units(bench: Bench) -> None:
    bench.make_busy()
    while bench.calls == 0:
        assert bench.take(one("bulk")) is not None
    for number in range(QUOTA_CACHE_SIZE):
        bench.quota.remember_refusal(tenant_of(number))
    assert bench.quota.is_refused(tenant_of(0))
    bench.quota.remember_refusal(tenant_of(QUOTA_CACHE_SIZE))
    assert not bench.quota.is_refused(tenant_of(0))
    assert bench.use(one("bulk")) is not None


#: What matters only to those that are parked, or while the server is lost.
NOWHERE: Any = None
#: Timers of a loop that may block.
IN_PLACE: Any = SimpleNamespace(may_block=True)


class Free:
    """A pool in which each task has a process."""

    drops_tasks = runs_inline = False

    def __init__(self) -> None:
        self.idle_requests: WeakSet[Any] = WeakSet()

    def count_processes(self) -> int:
        return 1

    def count_free(self) -> int:
        return 1

    def enter(self, _request: Any) -> bool:
        return True

    def has_room(self) -> bool:
        return True

    def is_contended(self) -> bool:
        return False

    def queued_requests(self) -> Iterable[Any]:
        return ()

    def call_when_free(self, function: Callable[[], None]) -> None:
        function()

    def lend(self, function: Callable[[], None]) -> None:
        function()

    def on_exit(self) -> None: ...


class Pool:
    """Brings tasks to a gate as Celery does: those without a process free wait."""

    def __init__(self, bench: Bench, slots: TaskSlots | None = None) -> None:
        self.started: list[Any] = []
        slots = TaskSlots("worker", lambda: None) if slots is None else slots
        self.timers: list[tuple[float, Callable[[], None]]] = []
        timers: Any = SimpleNamespace(call_after=self._call_after, cancel=self.timers.remove)
        self.gate = Gate(
            bench.throttle,
            ParkingPolicy(bench.throttle, slots, lambda: 1, NOWHERE, on_parked=lambda _: None),
            slots,
            outage=OutageMode(bench.throttle, NOWHERE, slots),
            delayed=SimpleNamespace(  # type: ignore[arg-type]  # as far as it is used
                end=NOWHERE, await_reply=NOWHERE
            ),
            calls=LoopCalls(IN_PLACE),
            pool=Free(),  # type: ignore[arg-type]  # as far as it is used
            outcomes=NOWHERE,
            timers=timers,
            functions=FunctionCalls(bench.throttle, timers),
            lookups=KeyLookups(bench.throttle, timers, NOWHERE),
            readmit=self.bring,
            report_ungated=lambda *_, **__: None,
            refresh_rules=lambda: False,
            learn=lambda _: False,
        )
        bench.quota, bench.refunds = self.gate._quota, self.gate._refunds

    def _call_after(self, *timer: Any) -> Any:
        self.timers.append(timer)
        return timer

    def keep_undecided(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
        """Delay what the server is to decide; return these requests, and whether each may run."""
        decided: list[tuple[Any, bool]] = []

        def delay(requests: Sequence[Any], may_run: Sequence[bool]) -> list[Status]:
            decided.extend(zip(requests, may_run, strict=True))
            return [Status.DELAYED] * len(requests)

        monkeypatch.setattr(self.gate._booking, "book_or_park_all", delay)
        return decided

    def receive(self, requests: Iterable[Any]) -> None:
        """Bring requests that Celery has just received."""
        for request in requests:
            state.reserved_requests.add(request)
            self.bring(request)

    def bring(self, request: Any) -> None:
        if self.gate.admit(request) is Status.ADMITTED:
            self.started.append(request)


class Booked(NamedTuple):
    """A task whose start is booked: its tenant has one unit a minute."""

    pool: Pool
    request: Any


@pytest.fixture
def booked(bench: Bench, task: Any) -> Booked:
    (request,) = bench.requests(task, range(1))
    pool = Pool(bench)
    bench.book(request, tenant_of(0))
    bench.refunds.watch(request.throttle_state.start)
    assert bench.throttle["tenant", 0].peek(0).remaining == 0
    return Booked(pool, request)


def units(bench: Bench) -> tuple[float, float, float]:
    """Return the units of the tenant that remain, were granted and were refunded."""
    totals = bench.throttle["tenant"].status().totals
    return bench.throttle["tenant", 0].peek(0).remaining, totals.granted, totals.refunded


def test_a_task_that_comes_too_late_gets_its_unit_again(bench: Bench, booked: Booked) -> None:
    bench.now += HORIZON + 0.001
    booked.pool.bring(booked.request)
    assert booked.pool.started == [booked.request]
    bench.now += HORIZON + 0.001
    bench.refunds.give_back()
    assert units(bench) == (0, 2, 1)


def test_a_task_that_comes_in_time_uses_its_unit(bench: Bench, booked: Booked) -> None:
    bench.now += HORIZON - 0.001
    booked.pool.bring(booked.request)
    assert booked.pool.started == [booked.request]
    booked.pool.gate.end(booked.request)
    bench.refunds.give_back()
    assert units(bench) == (0, 1, 0)


def test_a_task_that_ends_before_its_start_uses_no_unit(bench: Bench, booked: Booked) -> None:
    """It was revoked, has expired, or was dropped."""
    for _ in range(2):
        booked.pool.gate.end(booked.request)
        bench.now += HORIZON + 0.001
        bench.refunds.give_back()
    assert units(bench) == (1, 1, 1)


def test_a_task_that_never_comes_uses_no_unit(bench: Bench, booked: Booked) -> None:
    bench.now += HORIZON + 0.001
    (_, alarm), *_ = booked.pool.timers
    alarm()
    assert units(bench) == (1, 1, 1)


def test_a_unit_that_was_given_back_starts_no_task(bench: Bench, booked: Booked) -> None:
    """As the worker stops: a task that comes in time is decided about once more."""
    bench.refunds.give_back()
    assert units(bench) == (1, 1, 1)
    bench.throttle["tenant", 0].acquire()
    booked.pool.gate.calls.close()
    bench.now += HORIZON - 0.001
    assert booked.request.throttle_state.arrive_at_gate() is Status.RECEIVED


def test_the_unit_of_a_missed_start_is_given_back_once_even_if_the_call_fails(
    bench: Bench, booked: Booked, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.throttle.store.run

    def fail(call: Any) -> Any:
        run(call)
        raise StoreError("no reply")

    bench.now += HORIZON + 0.001
    with monkeypatch.context() as patch:
        patch.setattr(bench.throttle.store, "run", fail)
        booked.pool.gate.end(booked.request)
    bench.throttle["tenant", 0].acquire()
    bench.refunds.give_back()
    booked.pool.gate.end(booked.request)
    assert units(bench) == (0, 2, 1)


def test_a_unit_taken_ahead_belongs_to_the_task_that_is_booked_with_it(
    bench: Bench, task: Any
) -> None:
    """It is given back when the start of the task has passed, and only once."""
    pool = Pool(bench)
    bench.make_busy()
    (request,) = bench.requests(task, range(1))
    pool.gate._quota.queued = lambda: [request]
    assert bench.take(tenant_of(1)) == 0.0
    bench.now += HORIZON / 2
    bench.book(request, tenant_of(0))
    assert bench.calls == 1
    bench.now += HORIZON - 0.001  # its block has ended
    bench.refunds.give_back(bench.now)
    pool.bring(request)
    assert pool.started == [request]
    bench.refunds.give_back()
    assert bench.throttle["tenant", 0].peek(0).remaining == 0
    assert units(bench)[2] == 0


def test_a_task_whose_limits_cannot_be_read_fails(
    bench: Bench, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a task of another app: the worker goes on."""
    pool = Pool(bench)
    (request,) = bench.requests(task, range(1))
    failed: list[Any] = []
    monkeypatch.setattr(request, "on_failure", lambda info, **_: failed.append(info.exception.exc))
    monkeypatch.setattr(request, "acknowledge", lambda: None, raising=False)
    error = UnknownLimitError("limit 'strange' is not defined")
    bench.throttle.declared.tasks[task.name] = error
    pool.bring(request)
    assert pool.started == []
    assert failed == [error]


def test_a_claim_holds_the_slots_that_were_taken_with_it(bench: Bench, task: Any) -> None:
    """Whatever limits the code gives the task by now."""
    released: list[bool] = []
    slots = TaskSlots("worker", lambda: released.append(True))
    pool = Pool(bench, slots)
    (request,) = bench.requests(task, range(1))
    claims = Claims(bench.throttle.store, bench.throttle.keys, "worker", lambda: None)
    row = [7, 1, 0, 0, b"", b"", b"pool", 1, [b"entries", b"waits"]]
    request.message.claim = claims.receive(row).claim
    request.throttle_state = TaskState(request)
    pool.bring(request)
    assert pool.started == [request]
    pool.gate.end(request)
    assert released
    assert slots.releases.take() == [("entries", "waits", f"worker 7 {request.id}")]


def test_tasks_that_come_fast_but_one_by_one_share_a_call(bench: Bench, task: Any) -> None:
    """There is a process for one of them. The others have one soon, and need no call then."""
    pool = Pool(bench)
    bench.make_busy()
    requests = bench.requests(task, range(BATCH + 1))
    pool.receive(requests[:-1])
    assert [seconds for seconds, _ in pool.timers] == [GATHER_SECONDS]
    pool.receive(requests[-1:])
    assert pool.started == []
    ((seconds, call),) = pool.timers
    assert seconds == 0.0
    call()
    assert pool.started == requests
    assert bench.calls == 1


def test_they_wait_for_each_other_for_some_milliseconds_at_most(bench: Bench, task: Any) -> None:
    pool = Pool(bench)
    bench.make_busy()
    requests = bench.requests(task, range(3))
    pool.receive(requests)
    ((seconds, call),) = pool.timers
    assert seconds == GATHER_SECONDS
    call()
    assert pool.started == requests
    assert bench.calls == 1


def test_tasks_of_two_limits_that_come_fast_share_a_call(bench: Bench, app: Celery) -> None:
    @app.task(name="two", throttle=["tenant:{tenant}", "deep:{tenant}"], lazy=False, shared=False)
    def two(tenant: int) -> None: ...

    pool = Pool(bench)
    bench.make_busy()
    requests = bench.requests(two, range(3))
    pool.receive(requests)
    pool.gate._deferred._decide_some()
    assert pool.started == requests
    assert bench.calls == 1


def test_those_that_are_refused_join_their_lines_together(
    bench: Bench, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(bench)
    decided = pool.keep_undecided(monkeypatch)
    requests = bench.requests(task, range(BATCH + 1))
    for tenant in range(BATCH + 1):
        assert bench.take(tenant_of(tenant)) == 0.0
    bench.now += 1.0
    bench.make_busy()
    pool.receive(requests)
    pool.gate._deferred._decide_some()
    assert bench.calls == 1
    assert decided == [(each, each is requests[0]) for each in requests]
    assert not pool.started


def test_tasks_that_wait_for_a_slow_server_share_its_calls(
    bench: Bench, bulk_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes units for the tasks that come until the next one, which must wait."""
    pool = Pool(bench)
    monkeypatch.setattr(pool.gate.calls, "must_wait", lambda: True)
    requests = bench.requests(bulk_task, range(10))
    pool.receive(requests)
    assert bench.calls == 0
    for _ in range(4):
        pool.gate._deferred._decide_some()  # there is a process for one of them
    assert sorted(request.id for request in pool.started) == [each.id for each in requests]
    assert bench.calls == 4


def test_a_task_that_has_the_last_process_takes_a_free_slot_without_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would give up its process otherwise, and join a line, although there are slots."""

    @bench.throttle.app.task(name="slot", throttle="ten", lazy=False, shared=False)
    def slot(number: int) -> None: ...

    def take(request: Any, *, may_run: bool) -> Status:
        assert may_run
        status: Status = request.throttle_state.book_now()
        return status

    pool = Pool(bench)
    monkeypatch.setattr(pool.gate.pool, "has_room", lambda: False)
    monkeypatch.setattr(pool.gate._booking, "book_or_park", take)
    (request,) = bench.requests(slot, range(1))
    pool.receive([request])
    assert pool.started == [request]


def test_a_slow_server_that_refuses_a_task_parks_it_with_its_next_call(
    bench: Bench, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="rare", throttle="never", lazy=False, shared=False)
    def rare(tenant: int) -> None: ...

    pool = Pool(bench)
    decided = pool.keep_undecided(monkeypatch)
    monkeypatch.setattr(pool.gate.calls, "must_wait", lambda: True)
    requests = bench.requests(rare, range(3))
    assert bench.take(one("never")) == 0.0
    bench.now += 2 * HORIZON
    pool.receive(requests)
    pool.gate._deferred._decide_some()
    assert decided == [(each, each is requests[0]) for each in requests]
    assert not pool.started


def test_tasks_that_come_slowly_are_not_gathered(bench: Bench, task: Any) -> None:
    pool = Pool(bench)
    for request in bench.requests(task, range(5)):
        bench.now += 0.01
        pool.bring(request)
    assert len(pool.started) == 5
    assert pool.timers == []


@given(
    starts=st.integers(1, 200),
    at_once=st.integers(0, 200),
    later=st.floats(0, HORIZON),
    interval=st.floats(1e-6, HORIZON),
    lifetime=st.just(HORIZON) | st.floats(0, HORIZON),
    gaps=st.lists(st.floats(0, HORIZON / 4), max_size=300),
)
def test_a_unit_is_given_out_once_with_its_slot(
    *, starts: int, at_once: int, later: float, interval: float, lifetime: float, gaps: list[float]
) -> None:
    at_once = min(at_once, starts)
    block = Block(1_000.0, starts, at_once, later, interval, lifetime)
    slots = [0.0] * at_once + [later + number * interval for number in range(starts - at_once)]
    now, used = block.since, 0
    for gap in gaps:
        now += gap
        wait = block.use(now)
        if wait is not None:
            assert now - block.since <= lifetime
            assert now + wait >= block.since + slots[used] - 1e-9
            used += 1
    assert used <= starts


def test_a_unit_says_how_far_its_slot_is() -> None:
    block = Block(since=0.0, starts=3, at_once=1, later=0.005, interval=0.005)
    assert block.use(0.0) == 0.0
    assert block.use(0.004) == pytest.approx(0.001)
    assert block.use(0.012) == 0.0
    assert block.use(0.013) is None


def test_an_old_block_gives_nothing() -> None:
    block = Block(since=0.0, starts=3, at_once=3, later=0.0, interval=0.001)
    assert block.use(HORIZON + 0.001) is None


def test_a_block_of_a_window_that_ends_is_good_until_then() -> None:
    block = Block(since=0.0, starts=9, at_once=9, later=0.0, interval=0.0, lifetime=0.005)
    assert block.use(0.005) == 0.0
    assert block.lasts(0.005)
    assert not block.lasts(0.0051)
    assert block.use(0.0051) is None


def test_a_refusal_lasts_for_20_ms_and_has_no_start() -> None:
    block = Block(since=0.0)
    assert block.lasts(HORIZON)
    assert block.use(HORIZON) is None
    assert not block.lasts(HORIZON + 0.001)


def test_demand_is_what_passed_in_the_last_20_ms() -> None:
    demand = Demand()

    def count(key: str, now: float) -> int:
        demand.count((key,), now)
        return demand.recent(key, now)

    assert demand.recent("slow", 0.0) == 0
    assert count("slow", 0.0) == 1
    assert count("slow", 1.0) == 1
    wanted = [count("fast", number * 0.001) for number in range(100)]
    assert wanted[0] == 1
    assert 15 <= wanted[-1] <= 25
    assert demand.recent("fast", 0.11) >= 15
    assert demand.recent("fast", 10.0) == 0
    assert count("fast", 10.0) == 1


def test_demand_remembers_a_bounded_number_of_keys() -> None:
    demand = Demand()
    for number in range(20_000):
        demand.count((number,), number * 1e-6)
    assert len(demand._counts) < 5_000
