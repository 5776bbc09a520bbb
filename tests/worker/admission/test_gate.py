"""Tasks that stepped aside at the gate: what one of them meets is not in the way of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery
from celery.worker import state

from celery_throttle import StoreError, StoreUnavailableError, Throttle
from celery_throttle.store.script import Call, script
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.admission.gates import attach_gates
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.connection import BrokerConnection
from celery_throttle.worker.health.loop_calls import LateReplyError, run_in_place
from celery_throttle.worker.request import GatedRequest
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.tuning import RETRY_SECONDS
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import Candidate, SharedCallError, identity


class Announcer:
    """As Celery's request, which counts as ended before it announces its end."""

    on_event: Callable[[], None] = staticmethod(lambda: None)

    def send_event(self, type: str, **fields: Any) -> Any:  # noqa: A002, ARG002  # as in Celery
        self.on_event()


NOW = datetime.now(timezone.utc)


class Request(GatedRequest, Announcer):
    acknowledged = False

    def __init__(self, task: Any, number: int, parks: Callable[[], float | Status | None]) -> None:
        self.task, self.id = task, f"task-{number}"
        self.expires: datetime | None = None
        self.app = task.app
        self.args, self.kwargs = (), dict[str, Any]()
        self.message, self.delivery_info = SimpleNamespace(body=b""), dict[str, Any]()
        self.request_dict = dict[str, Any]()
        self.throttle_state = TaskState(self)
        self.parks = parks
        self.is_revoked: Callable[[], bool] = lambda: False

    def acknowledge(self) -> None: ...

    def revoked(self) -> bool:
        return self.is_revoked()


def _one_by_one(candidates: Sequence[Candidate]) -> Sequence[Sequence[Candidate]]:
    return [[one] for one in candidates]


class Bench:
    """A gate whose server is slow; each request says what becomes of it when it is parked."""

    def __init__(self, url: str) -> None:
        self.app = Celery("aside", set_as_current=False)
        self.throttle = Throttle(self.app, {"api": "1/h"}, url=url)
        self.throttle.register()

        @self.app.task(name="one", throttle="api", lazy=False, shared=False)
        def one() -> None: ...

        self.task = one
        self.tries = 0
        self.brought: list[Any] = []
        self.put_off: list[tuple[Any, float]] = []
        self.left: list[Any] = []
        self.idle_after_leave: list[Any] = []
        self.ended: list[Any] = []
        nothing: Any = SimpleNamespace(is_on=False, record=lambda *_: None)
        self.turns: list[Callable[[], None]] = []
        calls: Any = SimpleNamespace(
            is_late=False,
            must_wait=lambda: True,
            run_or_queue=lambda function: function(),
            run=lambda steps, _: run_in_place(steps),
            close=lambda: None,
        )
        self.gate = Gate(
            self.throttle,
            SimpleNamespace(  # type: ignore[arg-type]  # as far as it is used
                in_lines=True,
                divide=_one_by_one,
                park=self._park,
                is_parked=lambda _: False,
                conclude=self._conclude,
                leave=self._leave,
            ),
            SimpleNamespace(holds=lambda _: False, end=self.ended.append),  # type: ignore[arg-type]
            outage=nothing,
            functions=FunctionCalls(self.throttle, nothing),
            lookups=SimpleNamespace(  # type: ignore[arg-type]  # as far as it is used
                by_name={}, are_known=lambda _: True
            ),
            delayed=SimpleNamespace(  # type: ignore[arg-type]  # notes what it is told
                add=self._put_off,
                end=self.brought.append,
                await_reply=None,
                remove=lambda _: None,
                forget=lambda: None,
            ),
            calls=calls,
            outcomes=nothing,
            pool=SimpleNamespace(  # type: ignore[arg-type]  # as far as it is used
                idle_requests=WeakSet(),
                count_free=lambda: 100,
                enter=lambda _: True,
                has_room=lambda: True,
                queued_requests=list,
                on_exit=lambda: None,
                runs_inline=False,
            ),
            timers=SimpleNamespace(  # type: ignore[arg-type]  # as far as it is used
                call_after=self._call_after
            ),
            readmit=self.brought.append,
            report_ungated=lambda *_, **__: None,
            refresh_rules=lambda: False,
            learn=lambda _: False,
        )
        # No quota that is taken ahead serves the requests: only `parks` says what becomes of each.
        quota: Any = self.gate._quota
        quota.is_refused = lambda _: True

    def _park(self, group: Sequence[Candidate]) -> Any:
        self.tries += 1
        reply = yield Call(script("read_definitions"), [self.throttle.keys.limits], ["api"])
        return [("holder", reply) for _ in group]

    def _conclude(self, candidate: Candidate, _holder: str, reply: Any) -> Status | Exception:
        request = candidate.request
        try:
            wait = None if isinstance(reply, Exception) else request.parks()
        except Exception as error:  # noqa: BLE001  # as of the policy
            return error
        if isinstance(reply, Exception):
            return reply
        if wait is None:
            return Status.PARKED
        if isinstance(wait, Status):
            return wait
        return request.throttle_state.book(Start(time.monotonic() + wait))  # type: ignore[no-any-return]

    def _leave(self, requests: Sequence[Any]) -> None:
        self.left += requests
        self.idle_after_leave += self.gate.pool.idle_requests

    def _call_after(self, _: float, call: Callable[[], None]) -> object:
        self.turns.append(call)
        return call

    def _put_off(self, request: Any, seconds: float) -> Status:
        self.put_off.append((request, seconds))
        task: TaskState = request.throttle_state
        return task.delay()

    def delayed(self, broker: Any, readmit: Callable[[Any], None]) -> DelayedTasks:
        gate = self.gate
        return DelayedTasks(gate.timers, gate.calls, broker, broker, readmit, gate.deciding)

    def decide(self, *requests: Request) -> None:
        for request in requests:
            state.reserved_requests.add(request)
            assert self.gate.admit(request) is Status.DEFERRED
        (turn,) = self.turns
        turn()

    def request(self, parks: Callable[[], float | Status | None]) -> Request:
        return Request(self.task, len(state.reserved_requests), parks)

    def stepped_out(self) -> Any:
        """A request at the gate that a limit refused in its run; its message is acknowledged."""
        request: Any = self.request(waits)
        request.acknowledged = True
        request.throttle_state.move(Status.ADMITTED)
        request.throttle_state.move(Status.RUNNING)
        self.gate.step_out(request, [("api", None, 1_000_000)])
        request.throttle_state.move(Status.RECEIVED)
        return request


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    bench = Bench(redis_url)
    yield bench
    state.reserved_requests.clear()
    bench.throttle.store.close()


def runs() -> float:
    return 0.0


def waits() -> None:
    return None


def failing(error: Exception) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


def test_an_error_is_one_tasks_own(bench: Bench) -> None:
    """Such as that of a result backend, which is told of a task that is turned away."""
    broken = bench.request(failing(ConnectionError("no backend")))
    last = bench.request(runs)
    bench.decide(bench.request(waits), broken, bench.request(waits), last)
    assert bench.brought == [last]
    assert bench.put_off == [(broken, RETRY_SECONDS)]


def test_what_the_server_refuses_is_not_asked_again_at_once(bench: Bench) -> None:
    """A replica that does not confirm takes its time for each."""
    refused = [bench.request(failing(StoreError("only 0 confirmed"))) for _ in range(3)]
    bench.decide(*refused)
    assert bench.put_off == [(request, RETRY_SECONDS) for request in refused]
    assert bench.tries == 3


def test_those_that_lack_only_a_process_wait_for_one(bench: Bench) -> None:
    lacking, waiting = bench.request(lambda: Status.RECEIVED), bench.request(waits)
    bench.decide(lacking, waiting)
    assert bench.brought == [lacking]
    assert bench.left == [waiting]


@pytest.mark.parametrize("error", [StoreUnavailableError("cut"), SharedCallError("damaged")])
def test_what_it_gave_no_answer_for_is_asked_again(bench: Bench, error: StoreError) -> None:
    errors = [error]
    request = bench.request(lambda: failing(errors.pop())() if errors else 0.0)
    bench.decide(request)
    assert bench.brought == [request]
    assert bench.tries == 2


def test_a_task_that_waits_for_a_late_call_is_readmitted_after_it_was_kept(bench: Bench) -> None:
    """The call may end in another thread at any time, where there is no event loop."""
    request: Any = bench.request(waits)
    broker: Any = SimpleNamespace(free=lambda _: None, take=lambda _: None)
    gate: Any = bench.gate
    gate.calls.is_late = True
    gate.delayed = bench.delayed(broker, bench.brought.append)
    assert gate.admit(request) is Status.DELAYED
    assert not bench.brought
    (turn,) = bench.turns
    turn()
    assert bench.brought == [request]


def test_the_end_of_an_outage_leaves_tasks_alone_that_wait_for_a_late_reply(bench: Bench) -> None:
    """The reply decides about all of them; one that had ended meanwhile would make that fail."""
    gate: Any = bench.gate
    late: list[Callable[[], None]] = []

    def run(steps: Any, receive: Callable[[Any], None]) -> Any:
        late.append(lambda: receive(run_in_place(steps)))
        raise LateReplyError

    def readmit(request: Any) -> None:
        bench.brought.append(request)
        gate.end(request)  # it was revoked

    nothing: Any = SimpleNamespace(unacked_seconds=1e9, free=lambda _: None, take=lambda _: None)
    gate.calls.run = run
    gate.delayed = gate._booking.delayed = bench.delayed(nothing, readmit)
    requests = [bench.request(waits) for _ in range(2)]
    bench.decide(*requests)
    gate.delayed.end_all()
    bench.turns[-1]()
    gate.delayed.end(requests[1])
    (reply,) = late
    reply()
    assert not bench.brought
    assert bench.left == requests


def test_a_task_without_a_process_takes_nothing_of_the_share_in_an_outage(bench: Bench) -> None:
    """Its start would have passed when it has one, and it would take the units once more."""
    gate: Any = bench.gate
    taken: list[Any] = []

    def wait(requirement: Any, **_: Any) -> float:
        taken.append(requirement)
        return 0.0

    request: Any = bench.request(waits)
    state.reserved_requests.add(request)
    assert gate.admit(request) is Status.DEFERRED
    gate.outage = gate._booking.outage = SimpleNamespace(is_on=True, wait=wait)
    gate.waiting.hold_slots = lambda *_: None
    gate.pool.has_room = lambda: False
    (turn,) = bench.turns
    turn()
    assert bench.brought == [request]
    assert not taken
    assert gate.admit(request) is Status.ADMITTED
    assert len(taken) == 1


def test_an_outage_that_ends_during_a_decision_readmits_the_task_that_is_delayed(
    bench: Bench,
) -> None:
    """The decision sends an event first, and another thread or greenlet goes on meanwhile."""
    gate: Any = bench.gate
    nothing: Any = SimpleNamespace(unacked_seconds=1e9, can_delay=lambda _: False)
    nothing.free = nothing.take = lambda _: None
    gate.delayed = gate._booking.delayed = bench.delayed(nothing, bench.brought.append)
    gate.outage = gate._booking.outage = SimpleNamespace(is_on=True, wait=lambda *_, **__: None)
    other = threading.Thread(target=gate.delayed.end_all)

    def send(*_: Any, **__: Any) -> None:
        gate.outage.is_on = False
        other.start()
        other.join(0.2)

    request: Any = bench.request(waits)
    request.eventer = SimpleNamespace(send=send)
    request.throttle_state.receipt = {"timestamp": 0.0}
    assert gate.admit(request) is Status.DELAYED
    other.join()
    bench.turns[-1]()
    assert bench.brought == [request]


def test_tasks_that_leave_the_worker_do_not_count_as_idle(bench: Bench) -> None:
    """Celery does not count them either, so the pool would have as many free processes too many."""
    requests = [bench.request(waits) for _ in range(3)]
    bench.decide(*requests)
    assert bench.left == requests
    assert not bench.idle_after_leave


def test_a_task_that_is_revoked_does_not_count_as_idle(bench: Bench) -> None:
    attach_gates(bench.app, [bench.gate], lambda _: None)
    request: Any = bench.request(waits)
    idle: list[bool] = []

    def is_revoked() -> bool:
        state.task_ready(request)
        request.send_event("task-revoked")
        return True

    request.is_revoked, request.expires = is_revoked, NOW
    request.on_event = lambda: idle.append(request in bench.gate.pool.idle_requests)
    bench.decide(request)
    assert idle == [False]


def test_a_task_that_is_revoked_meanwhile_takes_nothing(bench: Bench) -> None:
    revoked, broken, last = (bench.request(runs) for _ in range(3))
    revoked.expires = broken.expires = NOW
    revoked.is_revoked = lambda: True
    broken.is_revoked = lambda: bool(failing(ConnectionError("no backend"))())
    bench.decide(revoked, broken, last)
    assert bench.brought == [last]
    assert bench.ended == [revoked]
    assert bench.put_off == [(broken, RETRY_SECONDS)]
    assert bench.tries == 1


def test_what_was_dropped_meanwhile_keeps_no_slot(bench: Bench) -> None:
    """Celery lost the broker while a task was on its way to its process."""
    dropped, broken, kept = (bench.request(runs) for _ in range(3))
    for request in (broken, kept):
        state.reserved_requests.add(request)
    started: list[Any] = []

    def on_task_request(request: Any) -> None:
        if request is broken:
            raise ConnectionError("no backend")
        started.append(request)

    connection: Any = SimpleNamespace(
        consumer=SimpleNamespace(on_task_request=on_task_request),
        gate_for=lambda _: bench.gate,
        stepped_out=bench.gate.stepped_out,
    )
    for request in (dropped, broken, kept):
        BrokerConnection.readmit(connection, request)
    assert started == [kept]
    assert bench.ended == [dropped]
    assert bench.put_off == [(broken, RETRY_SECONDS)]


def test_a_task_out_of_a_line_that_meets_a_limit_has_nothing_of_its_run_any_more(
    bench: Bench,
) -> None:
    """Neither what was taken with its claim, nor the process that ran it: that has others now."""
    request: Any = bench.request(lambda: None)
    request.message.claim = SimpleNamespace(
        has_units=True, wait=None, slots=["slot"], takes=(), name="w 7", end=lambda: None
    )
    request.throttle_state = TaskState(request)
    assert request.throttle_state.move(Status.ADMITTED) is Status.ADMITTED
    request.throttle_state.move(Status.RUNNING)
    request.time_start, request.worker_pid, request._apply_result = 1.0, 7, object()
    bench.gate.step_out(request, [("api", None, 1_000_000)])
    assert request.throttle_state.status is Status.DEFERRED
    assert (request.time_start, request.worker_pid, request._apply_result) == (None, None, None)
    assert request in state.reserved_requests
    (turn,) = bench.turns
    turn()
    assert bench.tries == 1
    assert bench.left == [request]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.DEFERRED, Status.BOOKED, Status.DELAYED])
def test_a_gate_that_stops_lets_go_of_a_stepped_out_task_wherever_it_waits(
    bench: Bench, status: Status
) -> None:
    """Celery has dropped it, and its message is acknowledged: no broker delivers it again."""
    requests = [bench.stepped_out() for _ in range(3)]
    waiting, running, ended = requests
    waiting.throttle_state.move(status)
    assert bench.gate._decide(running, lambda _: Status.ADMITTED) is Status.ADMITTED
    bench.gate.end(ended)
    state.reserved_requests.clear()
    bench.gate.stop()
    bench.gate.stop()
    assert bench.left == [waiting]
    assert not bench.gate.stepped_out


def test_a_gate_that_stops_in_an_outage_leaves_alone_what_its_late_reply_lets_go_of(
    bench: Bench,
) -> None:
    """The gate receives that reply while it stops, and then lets go of all the others."""
    requests = [bench.stepped_out() for _ in range(3)]
    answered, other, last = requests
    other.throttle_state.move(Status.DELAYED)
    bench.gate.outage.is_on = True  # type: ignore[misc]  # of a stand-in
    bench.gate.calls.close = lambda: bench.gate._conclude_all(  # type: ignore[method-assign]
        [answered, last], [StoreUnavailableError("lost")] * 2
    )
    bench.gate.stop()
    assert sorted(map(id, bench.left)) == sorted(map(id, requests))
    assert not bench.gate.stepped_out


@pytest.mark.parametrize("status", [Status.BOOKED, Status.PARKED])
def test_a_gate_that_stops_while_another_thread_concludes_a_late_reply_lets_go_once(
    bench: Bench, status: Status
) -> None:
    request = bench.stepped_out()
    request.throttle_state.move(status)  # so far as the other thread is
    bench.gate.stop()
    left = bench.left[:]
    bench.gate._conclude_all([request], [status])
    assert bench.left == left == [request] * (status is Status.BOOKED)
    assert not bench.brought
    assert not bench.gate.stepped_out


def test_each_way_out_of_a_line_is_told_from_the_others(bench: Bench) -> None:
    """A task that goes into a line again must not be taken for what it was the time before."""
    request: Any = bench.request(lambda: None)
    told = {identity(request)}
    for name in ("worker 7", "worker 8"):
        request.throttle_state.claim = SimpleNamespace(name=name)
        told.add(identity(request))
    assert len(told) == 3


def test_a_claimed_task_that_stepped_out_does_not_count_as_running(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the worker would claim tasks for a process that nothing frees soon."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    claims = Claims(bench.throttle.store, bench.throttle.keys, "w", lambda: None)
    claim, short = (claims.receive([token, 1, 0, 0, b"", b"", b"api", 1]).claim for token in (1, 2))
    assert short.start()
    short.end()
    request = bench.request(waits)
    request.throttle_state.claim = claim
    request.throttle_state.move(Status.ADMITTED)
    request.throttle_state.move(Status.RUNNING)
    assert claim.start()
    assert claims.short_runs() == 1
    bench.gate.step_out(request, [("api", None, 1_000_000)])
    assert claims.short_runs() == 0
