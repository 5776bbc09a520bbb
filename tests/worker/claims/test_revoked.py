"""Revoked tasks are withdrawn from their lines, whatever other tasks wait there."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Message

from celery_throttle import Throttle
from celery_throttle.tasks.messages import packing
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.call import ClaimCall
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.slots import ReportQueue
from tests.protocol import Protocol

#: Headers as a broken publisher may have set them, of tasks that have not the revoked stamp.
MALFORMED: list[dict[str, Any]] = [
    {"stamped_headers": 1},
    {"stamped_headers": ["group"], "stamps": 1},
    {"stamped_headers": ["group"], "stamps": ["group"]},
    {"stamped_headers": [["group"]], "stamps": {"group": "a"}},
    {"stamped_headers": ["group"], "stamps": {"group": 1}},
]


@pytest.fixture
def revoked(lines: Protocol, monkeypatch: pytest.MonkeyPatch) -> RevokedTasks:
    monkeypatch.setattr("celery.worker.state.revoked_stamps", {"group": ["a"]})
    app = Celery("revokes", broker="memory://", set_as_current=False)
    throttle = Throttle(app, {"api": "1/h burst 1000"}, url=lines.store.url)
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    slots: Any = type("Slots", (), {"releases": ReportQueue[Any]()})
    queues: Any = type("Queues", (), {"keys": staticmethod(lambda: [lines.keys.queue("q")])})
    return RevokedTasks(ClaimCall(throttle, claims, slots, queues, lambda: None))


def withdraw(revoked: RevokedTasks) -> list[str]:
    found: list[str] = []
    while revoked.has_new():
        found += [task.task_id for task in revoked.withdraw()]
    return found


def park(lines: Protocol, task_id: str, headers: dict[str, Any]) -> None:
    packed = packing.pack(Message("[[], {}, {}]", headers={"task": "one", **headers}))
    lines.park(task_id, ["api"], message=packed, may_run=False)


STAMPED = {"stamped_headers": ["group"], "stamps": {"group": ["a"]}}


@pytest.mark.parametrize("headers", MALFORMED)
def test_a_malformed_stamp_hides_no_other_task(
    lines: Protocol, revoked: RevokedTasks, headers: dict[str, Any]
) -> None:
    park(lines, "malformed", headers)
    park(lines, "stamped", STAMPED)
    assert withdraw(revoked) == ["stamped"]
    assert lines.waiting() == ["malformed"]


def test_a_task_whose_id_is_no_text_is_withdrawn(lines: Protocol, revoked: RevokedTasks) -> None:
    park(lines, "\ud800", STAMPED)
    assert len(withdraw(revoked)) == 1
    assert lines.waiting() == []
