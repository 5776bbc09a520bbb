"""Parked tasks are acknowledged to the broker once they are safe."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import StoreError, Throttle, UnknownLimitError
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.waiting import Kept
from celery_throttle.worker.admission.batching import Decisions, decide_together
from celery_throttle.worker.health.loop_calls import run_in_place
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting import park
from celery_throttle.worker.waiting.park import Candidate, ParkingPolicy, SharedCallError
from tests.servers.server import Server


@pytest.fixture
def policy(own_server: Server) -> Iterator[ParkingPolicy]:
    with Celery("shop", set_as_current=False) as app:
        app.conf.throttle_replicas = 1
        throttle = Throttle(app, {"api": "1/h"}, url=own_server.url)
        slots = TaskSlots("worker", lambda: None)
        routing: Any = SimpleNamespace(
            queue_of=lambda _: "celery", is_temporary=lambda _: False, rank_of=lambda _: 0
        )
        yield ParkingPolicy(throttle, slots, lambda: 1, routing, on_parked=lambda _: None)
        throttle.store.close()


class Request:
    """A request as far as joining a line and leaving the worker go."""

    def __init__(self, number: int) -> None:
        self.id, self.request_dict = f"task-{number}", dict[str, Any]()
        self.name, self.hostname, self.expires = "task", "worker", None
        self.delivery_info = dict[str, Any]()
        self.message = SimpleNamespace(
            body="[]",
            headers={},
            properties={},
            delivery_info={},
            content_type="application/json",
            content_encoding="utf-8",
        )
        self.throttle_state = TaskState(self)
        self.is_acknowledged = False
        self.acknowledged = True  # to Celery: it joins its line although its limit has room

    def acknowledge(self) -> None:
        self.is_acknowledged = True


def decide(
    policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch, *replies: Sequence[Any]
) -> Decisions:
    """Decide about as many requests as there are replies of the script."""

    def park_group(_group: Sequence[Candidate]) -> Plan[list[tuple[str, Sequence[Any]]]]:
        yield from ()
        return [("holder", reply) for reply in replies]

    monkeypatch.setattr(policy, "park", park_group)
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


@pytest.fixture
def candidates(policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Tasks of a line each."""
    monkeypatch.setattr(park, "announce_wait", lambda *_, **__: None)
    policy.throttle.register()
    limits: Any = SimpleNamespace(kept=Kept.ALL, max_wait=None, settles=False, slots=())
    return [
        Candidate(
            Request(number),
            limits,
            policy.throttle.require([policy.throttle["api", number]], 1),
            may_run=False,
        )
        for number in range(3)
    ]


def statuses(policy: ParkingPolicy, candidates: Sequence[Candidate]) -> list[Any]:
    """Return what becomes of tasks that are parked by one call; of an error its class."""
    (group,) = policy.divide(candidates)
    decisions = policy.throttle.run_plan(policy.park(group))
    results = [
        policy.conclude(one, *decision) for one, decision in zip(group, decisions, strict=True)
    ]
    return [type(one) if isinstance(one, Exception) else one for one in results]


def test_tasks_of_several_lines_are_parked_by_one_call(
    policy: ParkingPolicy, candidates: list[Candidate], own_server: Server
) -> None:
    with own_server.client() as client:
        client.config_resetstat()
        assert statuses(policy, candidates) == [Status.PARKED] * 3
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2  # it loads the script
        assert len(client.keys("*:line:*")) == 3


def test_of_those_that_lack_only_a_process_the_broker_keeps_the_messages(
    policy: ParkingPolicy, candidates: list[Candidate]
) -> None:
    first, second, last = candidates
    first.request.acknowledged = second.request.acknowledged = False
    needs_slot: Any = SimpleNamespace(kept=Kept.ALL, max_wait=None, settles=False, slots=(0,))
    second = second._replace(limits=needs_slot)
    decided = statuses(policy, [first, second, last])
    assert decided == [Status.RECEIVED, Status.PARKED, Status.PARKED]
    assert statuses(policy, [first]) == [Status.PARKED]


def test_a_damaged_limit_stops_no_task_of_another(
    policy: ParkingPolicy, candidates: list[Candidate], own_server: Server
) -> None:
    with own_server.client() as client:
        keys = policy.throttle.keys
        client.hset(keys.limits, keys.field(LimitRef("api", "1")), "damaged")
    assert statuses(policy, candidates) == [SharedCallError] * 3
    assert all(one.request.throttle_state.in_doubt for one in candidates)
    alone = [statuses(policy, [one]) for one in candidates]
    assert alone == [[Status.PARKED], [StoreError], [Status.PARKED]]


def test_a_damaged_message_stops_no_other_task(
    policy: ParkingPolicy, candidates: list[Candidate]
) -> None:
    candidates[1].request.message.headers = {"head": object()}
    assert statuses(policy, candidates) == [SharedCallError] * 3
    assert statuses(policy, candidates[:1]) == [Status.PARKED]


def test_a_limit_that_is_unknown_stops_no_task_of_another(
    policy: ParkingPolicy, candidates: list[Candidate], own_server: Server
) -> None:
    """It is registered when its task is decided alone."""
    policy.throttle["api", 0].define("2/h")
    with own_server.client() as client:
        client.hdel(policy.throttle.keys.limits, "api")
    unknown = UnknownLimitError
    assert statuses(policy, candidates) == [Status.PARKED, unknown, unknown]
    assert statuses(policy, candidates[1:2]) == [Status.PARKED]


def test_no_thread_takes_an_identity_before_its_time(
    policy: ParkingPolicy,
) -> None:
    """The loop and the thread of the leases take them, and each message must stay known."""
    begin = threading.Barrier(2)

    def take() -> list[str]:
        begin.wait()
        return policy.take_acknowledged()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            for _ in range(200):
                policy._acknowledging.extend([(0.0, "old")] * 300)
                policy._acknowledging.append((math.inf, "new"))
                both = [threads.submit(take) for _ in range(2)]
                assert [one for each in both for one in each.result()] == ["old"] * 300
                policy._acknowledging.clear()
    finally:
        sys.setswitchinterval(interval)
