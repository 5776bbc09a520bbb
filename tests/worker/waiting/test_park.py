"""Parked tasks are acknowledged to the broker once they are safe."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import StoreError, Throttle
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.park import ParkingPolicy
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


def test_replicas_confirm_once_for_all(
    policy: ParkingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[int] = []
    monkeypatch.setattr(policy.throttle.store, "confirm", confirmed.append)
    requests = [Request(number) for number in range(3)]
    policy.leave(requests)
    assert confirmed == [1]
    assert all(request.is_acknowledged for request in requests)
    assert {request.throttle_state.status for request in requests} == {Status.PARKED}
    policy.leave([])
    assert confirmed == [1]


def test_without_replicas_no_task_is_acknowledged(policy: ParkingPolicy) -> None:
    request = Request(1)
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):
        policy.leave([request])
    assert not request.is_acknowledged
    assert request.throttle_state.status is Status.RECEIVED
