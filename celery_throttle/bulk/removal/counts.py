"""Finds the tasks that a removal would take out of lines, and counts those that it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import add
from typing import NamedTuple

from celery_throttle.errors import StoreUnavailableError
from celery_throttle.limiter.sharded import at_once
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status_text import waiting_text
from celery_throttle.observe.text import count
from celery_throttle.operations.lines import (
    WithdrawPlans,
    list_names,
    waiting_queues,
)
from celery_throttle.operations.plan import Plan, read_call
from celery_throttle.tasks.app_limits import AppLimits


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The tasks that wait for a limit now. ``throttle["mail"].count_waiting()`` returns it.

    Attributes:
        waiting: Tasks in lines. A removal takes them out of their lines.
        claimed: Tasks that workers have claimed. A removal does not take them. They run, or wait
            again if their worker dies and its lease expires.
        elsewhere: Tasks in lines of another broker's queues. A removal does not take them.
        queues: The number of waiting tasks of each queue, by its name.
        lost_shards: The names of the shards whose server cannot be reached: their tasks are not
            counted. Empty without shards.
    """

    waiting: int
    claimed: int
    elsewhere: int
    queues: Mapping[str, int]
    lost_shards: tuple[str, ...] = ()

    def texts(self, subject: str) -> Iterator[str]:
        """Yield what waits for a subject, and what a removal leaves alone.

        :meta private:
        """
        need = f" for {subject}" if subject else ""
        queues = ", ".join(f"{tasks:,} in queue {queue}" for queue, tasks in self.queues.items())
        yield f"{waiting_text(self.waiting)}{need}{': ' if queues else ''}{queues}"
        if self.claimed:
            yield f"{count(self.claimed, 'claimed task')} of workers will be left alone"
        if self.elsewhere:
            yield f"{count(self.elsewhere, 'task')} of other brokers will be left alone"
        for shard in self.lost_shards:
            yield f"shard {shard} cannot be reached, its tasks are not counted"


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of a removal, as ``throttle["mail"].drain()`` and the like return it.

    Attributes:
        removed: Tasks that left their lines.
        failed: Tasks that wait as before, because their messages cannot be read or sent.
        claimed: Tasks that were claimed when the removal ended; see :class:`WaitingCount`.
        elsewhere: Tasks in lines of another broker's queues when the removal began.
    """

    removed: int
    failed: int
    claimed: int
    elsewhere: int

    def __add__(self, other: Removal) -> Removal:  # of another shard
        return Removal(*map(add, astuple(self), astuple(other)))


class QueueTasks(NamedTuple):
    """The tasks that wait in one queue of the app's broker."""

    name: str  #: as the broker names it
    key: str  #: as keys in Redis name it, with its broker
    lines: Mapping[str, int]  #: lines, and the number of tasks in each
    quarantined: int  #: number of tasks in quarantine

    @property
    def total(self) -> int:
        """The number of tasks."""
        return sum(self.lines.values()) + self.quarantined


class FoundTasks(NamedTuple):
    """The tasks that wait, by queue."""

    found_at: int  #: microseconds of the server's clock
    queues: list[QueueTasks]
    elsewhere: int  #: number of tasks in queues of other brokers


def count_waiting(throttle: AppLimits, ref: LimitRef | None) -> WaitingCount:
    """Return how many tasks need a limit, or a key of it; None: all that wait.

    Raises:
        UnknownLimitError: see :func:`find_tasks`.
        StoreError: none of the shards can be read.
    """
    if not throttle.settings.has_server:
        return WaitingCount(0, 0, 0, {})

    def count_in_shard(observer: Observer) -> Plan[tuple[FoundTasks, int]]:
        plans = WithdrawPlans(observer.keys, ref)
        found = yield from find_tasks(throttle, observer, plans)
        return found, (yield from plans.count_claims())

    reading = throttle.read(count_in_shard, ref)
    if not reading.values:
        reading.complete()  # raises the error of a shard
    queues = Counter[str]()
    for found, _ in reading.values.values():
        queues.update({queue.name: queue.total for queue in found.queues})
    return WaitingCount(
        waiting=queues.total(),
        claimed=sum(claimed for _, claimed in reading.values.values()),
        elsewhere=sum(found.elsewhere for found, _ in reading.values.values()),
        queues=dict(queues),
        lost_shards=(*reading.lost,),
    )


def reachable_first(parts: Sequence[AppLimits]) -> Sequence[AppLimits]:
    """Return parts, last those that cannot be reached: tasks in others do not wait for them."""
    if len(parts) <= 1:
        return parts
    lost = [not is_reachable for is_reachable in at_once(_is_reachable, parts)]
    return [parts[number] for number in sorted(range(len(parts)), key=lost.__getitem__)]


def _is_reachable(part: AppLimits) -> bool:
    try:
        part.store.run(read_call("", ("EXISTS", part.keys.limits)))
    except StoreUnavailableError:
        return False
    return True


def find_tasks(throttle: AppLimits, observer: Observer, plans: WithdrawPlans) -> Plan[FoundTasks]:
    """Return the tasks of an app that wait now in one shard.

    Queues are found by the limits that the server and the app know, and by the app's queues.

    Raises:
        UnknownLimitError: no task waits for the limit, and nobody has defined it.
    """
    now, names = yield from list_names(observer)
    quarantined = yield from plans.count_quarantined()
    known = [throttle.qualify(name) for name in throttle.app.amqp.queues]
    names = list(dict.fromkeys([*names, *throttle.code_limits]))
    waiting, _ = yield from waiting_queues(observer.keys, names)
    own, elsewhere, broker = list[QueueTasks](), 0, throttle.own_broker
    for key in dict.fromkeys([*waiting, *quarantined, *known]):
        lines = yield from plans.lines(key)
        tasks = QueueTasks(key.removeprefix(broker), key, lines, quarantined[key])
        if not key.startswith(broker):
            elsewhere += tasks.total
        elif lines or tasks.quarantined:
            own.append(tasks)
    if not own and not elsewhere and plans.ref is not None:
        yield from observer.check_known(plans.ref)
    return FoundTasks(now, own, elsewhere)
