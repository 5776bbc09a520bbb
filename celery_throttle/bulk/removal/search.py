"""Finds the tasks that wait for a limit: their queues and lines, and those in quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_throttle.operations.lines import (
    WithdrawPlans,
    limit_names,
    quarantined_queues,
    waiting_queues,
)
from celery_throttle.operations.plan import Plan
from celery_throttle.tasks.app_limits import AppLimits


@dataclass(frozen=True, slots=True)
class QueueTasks:
    """The tasks that wait in one queue."""

    key: str  #: the queue as keys in Redis name it
    name: str | None  #: as the broker names it; None for a queue of another broker than the app's
    lines: Mapping[str, int]  #: lines, and the number of tasks in each
    quarantined: int  #: number of tasks in quarantine

    @property
    def total(self) -> int:
        """The number of tasks."""
        return sum(self.lines.values()) + self.quarantined


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """The tasks that wait, by queue."""

    found_at: int  #: microseconds of the server's clock
    queues: list[QueueTasks]  #: those of the app's broker
    elsewhere: int  #: number of tasks in queues of other brokers

    @property
    def total(self) -> int:
        """The number of tasks in queues of the app's broker."""
        return sum(queue.total for queue in self.queues)


def find_tasks(throttle: AppLimits, plans: WithdrawPlans) -> Plan[FoundTasks]:
    """Return the tasks that wait now.

    Queues are found by the limits that the server and the app know, and by the app's queues.

    Raises:
        UnknownLimitError: no task waits for the limit, and nobody has defined it.
    """
    now, names = yield from limit_names(throttle.keys)
    names = list(dict.fromkeys([*names, *throttle.code_limits]))
    in_quarantine = yield from quarantined_queues(throttle.keys)
    known = [throttle.qualify(name) for name in throttle.app.amqp.queues]
    waiting, _ = yield from waiting_queues(throttle.keys, names)
    found = []
    for key in dict.fromkeys([*waiting, *in_quarantine, *known]):
        lines = yield from plans.lines(key)
        quarantined = (yield from plans.count_quarantined(key)) if key in in_quarantine else 0
        if lines or quarantined:
            found.append(QueueTasks(key, _broker_name(throttle, key), lines, quarantined))
    if not found and plans.ref is not None:
        yield from throttle.plans.check_known(plans.ref)
    own = [queue for queue in found if queue.name is not None]
    return FoundTasks(now, own, sum(queue.total for queue in found if queue.name is None))


def _broker_name(throttle: AppLimits, key: str) -> str | None:
    """Return the name of a queue at the app's broker; None if it is of another broker."""
    broker = throttle.qualify("")
    return key.removeprefix(broker) if key.startswith(broker) else None
