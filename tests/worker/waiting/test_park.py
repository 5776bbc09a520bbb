"""Parked tasks are acknowledged to the broker once they are safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import StoreError, Throttle
from celery_throttle.operations.plan import Plan
from celery_throttle.worker.admission.batching import Decisions, decide_together
from celery_throttle.worker.health.loop_calls import run_in_place
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.park import Candidate, ParkingPolicy
from tests.servers.server import Server


@pytest.fixture
def policy(own_server: Server) -> Iterator[ParkingPolicy]:
    with Celery("shop", set_as_current=False) as app:
        app.conf.throttle_replicas = 1
        throttle = Throttle(app, {"api": "1/h"}, url=own_server.url)
        slots = TaskSlots("worker", lambda: None)
        nowhere: Any = None
        yield ParkingPolicy(throttle, slots, lambda: 1, nowhere, on_parked=lambda _: None)
        throttle.store.close()


class Request:
    """A request as far as leaving the worker goes."""

    def __init__(self, number: int) -> None:
        self.id, self.request_dict = f"task-{number}", dict[str, Any]()
        self.message = SimpleNamespace()
        self.throttle_state = TaskState(self)
        self.is_acknowledged = False

    def acknowledge(self) -> None:
        self.is_acknowledged = True


def decide(
    policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch, *replies: Sequence[Any]
) -> Decisions:
    """Decide about as many requests as there are replies of the script."""

    def park(_group: Sequence[Candidate]) -> Plan[list[tuple[str, Sequence[Any]]]]:
        yield from ()
        return [("holder", reply) for reply in replies]

    monkeypatch.setattr(policy, "park", park)
    monkeypatch.setattr(policy, "group_of", lambda _: "a line")
    nothing: Any = SimpleNamespace(refs=())
    candidates = [
        Candidate(Request(number), nothing, nothing, may_run=True) for number in range(len(replies))
    ]
    return run_in_place(decide_together(policy.throttle, policy, candidates))


def test_replicas_confirm_once_for_all(
    policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[int] = []
    monkeypatch.setattr(policy.throttle.store, "confirm", confirmed.append)
    decisions = decide(policy, monkeypatch, [b"known"], [b"known"], [b"surplus"])
    assert confirmed == [1]
    parked = [
        candidate.request
        for candidate, holder, reply in decisions[:2]
        if policy.conclude(candidate, holder, reply) is Status.PARKED
    ]
    policy.leave(parked)
    assert [request.is_acknowledged for request in parked] == [True, True]
    assert {request.throttle_state.status for request in parked} == {Status.PARKED}
    decide(policy, monkeypatch, [b"surplus"])
    assert confirmed == [1]


def test_without_replicas_no_task_is_acknowledged(
    policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided about once more, as a task that may be in its line."""
    (decision,) = decide(policy, monkeypatch, [b"known"])
    candidate, _, error = decision
    assert isinstance(error, StoreError)
    assert "only 0 of 1 replicas" in str(error)
    assert policy.conclude(*decision) is error
    assert candidate.request.throttle_state.in_doubt
    assert candidate.request.throttle_state.status is Status.RECEIVED
