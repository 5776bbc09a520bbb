"""The states of a task in a worker: what the diagram shows, and nothing else."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.tasks.context import STATE_HEADER
from celery_throttle.worker.claim import Claim, Wait
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import (
    BrokerWait,
    Status,
    TaskState,
    TransitionError,
)

#: The statuses into which a task may come from each status, apart from its return to the gate.
DIAGRAM: dict[Status, set[Status]] = {
    Status.RECEIVED: {
        Status.QUEUED,
        Status.DEFERRED,
        Status.DELAYED,
        Status.BOOKED,
        Status.ADMITTED,
        Status.PARKED,
    },
    Status.CLAIMED: {Status.ADMITTED, Status.DELAYED},
    Status.QUEUED: {Status.DELAYED},
    Status.DEFERRED: {Status.DELAYED},
    Status.DELAYED: {Status.DELAYED, Status.PARKED},
    Status.BOOKED: {Status.ADMITTED, Status.DELAYED},
    Status.ADMITTED: {Status.IN_STRATEGY, Status.RUNNING},
    Status.IN_STRATEGY: {Status.RUNNING},
    Status.RUNNING: {Status.STEPPED_OUT},
    Status.STEPPED_OUT: {Status.DEFERRED, Status.DELAYED},
    Status.PARKED: set(),
    Status.ENDED: set(),
}


def task_state(claim: Claim | None = None) -> TaskState:
    message = SimpleNamespace() if claim is None else SimpleNamespace(claim=claim)
    return TaskState(SimpleNamespace(request_dict={}, message=message))


def claim(wait: Wait | None) -> Claim:
    holder: Any = SimpleNamespace(worker="worker")
    return Claim(holder, 7, has_units=wait is not None, wait=wait, slots=(), start_by=0.0)


@pytest.mark.parametrize("status", list(Status), ids=str)
def test_no_transition_but_those_of_the_diagram(status: Status) -> None:
    for into in set(Status) - {Status.RECEIVED, Status.CLAIMED, Status.ENDED}:
        task = task_state()
        task.status = status
        if into in DIAGRAM[status]:
            assert task.move(into) is into
            assert task.status is into
        else:
            with pytest.raises(TransitionError) as caught:
                task.move(into)
            assert str(caught.value) == f"a task that is {status.value} cannot become {into.value}"
            assert task.status is status


@pytest.mark.parametrize("status", list(Status), ids=str)
def test_a_task_returns_to_the_gate_unless_it_passed_or_left(status: Status) -> None:
    task = task_state()
    task.status = status
    passed = (
        Status.ADMITTED,
        Status.IN_STRATEGY,
        Status.RUNNING,
        Status.STEPPED_OUT,
        Status.PARKED,
        Status.ENDED,
    )
    if status in passed:
        with pytest.raises(TransitionError):
            task.arrive_at_gate()
    else:
        expected = status if status is Status.CLAIMED else Status.RECEIVED
        assert task.arrive_at_gate() is expected


def test_a_task_that_was_parked_does_not_end_here() -> None:
    task = task_state()
    task.park()
    assert task.end() is Status.PARKED
    other = task_state()
    assert other.end() is Status.ENDED
    assert other.end() is Status.ENDED


def test_booked_units_are_kept_for_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(
        "celery_throttle.worker.task_state.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    task = task_state()
    task.book(Start(1000.01))
    now[0] += 0.029
    assert task.arrive_at_gate() is Status.BOOKED
    now[0] += 0.002
    assert task.arrive_at_gate() is Status.RECEIVED


def test_a_claim_with_units_is_used_once() -> None:
    """The run that it was made for has the units; after a step out the gate decides anew."""
    wait = Wait(LimitRef("api", None), 3, 1.5)
    task = task_state(claim(wait))
    assert task.arrive_at_gate() is Status.CLAIMED
    task.move(Status.ADMITTED)
    assert task.end_wait() is wait
    task.move(Status.RUNNING)
    task.step_out()
    task.move(Status.DEFERRED)
    assert task.arrive_at_gate() is Status.RECEIVED
    assert task.end_wait() is None


def test_a_claim_without_units_is_decided_at_the_gate() -> None:
    assert task_state(claim(None)).arrive_at_gate() is Status.RECEIVED


def received(header: Any) -> TaskState:
    request = SimpleNamespace(request_dict={STATE_HEADER: header}, message=SimpleNamespace())
    task = TaskState(request)
    assert request.request_dict == {}
    return task


@pytest.mark.parametrize("key", [None, "42"])
def test_a_wait_at_the_broker_survives_as_a_header(key: str | None) -> None:
    sent = task_state()
    sent.broker_wait = BrokerWait(time.time() - 5, "mail", key)
    header = json.loads(json.dumps(sent.message_headers()))[STATE_HEADER]
    found = received(header).broker_wait
    assert found is not None
    wait = found.end()
    assert (wait.ref, wait.position) == (LimitRef("mail", key), 0)
    assert wait.seconds == pytest.approx(5, abs=1)


def test_a_clock_that_is_behind_gives_no_negative_wait() -> None:
    assert BrokerWait(time.time() + 60, "mail", None).end().seconds == 0


@pytest.mark.parametrize(
    "header",
    [None, 5, [], [1.0, "mail"], ["x", "mail", None], [1, "no name", None], [1, "mail", 7]],
)
def test_a_malformed_header_is_ignored(header: Any) -> None:
    headers = [{name: header} for name in ("broker_wait", "broker_wait_until", "refusals")]
    for each in (header, {"requested": [header]}, *headers):
        task = received(each)
        assert (task.broker_wait, task.requested, task.refusals) == (None, (), {})
