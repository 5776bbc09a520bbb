"""Plans that read which workers live, which queues they consume, and what nobody can start."""

from __future__ import annotations

from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.observe.values import Stranded
from celery_throttle.operations.plan import LimitPlans, Plan
from celery_throttle.store.script import Call, script

#: Seconds for which a queue counts as consumed after a worker has reported that. Workers do so
#: every ten seconds at least.
_CONSUMED_SECONDS = 60.0

#: Seconds until each worker has reported a queue in which a first task waits.
_REPORT_SECONDS = 15.0


class Fleet(NamedTuple):
    """Live workers, and the queues that they consume."""

    now: int  #: the server's time in microseconds
    workers: int
    quarantined: int  #: tasks
    consumed: dict[str, bool]  #: of queues with tasks that a worker has ever reported

    def consumes(self, queue: str, oldest: float) -> bool:
        """Return whether a live worker consumes a queue.

        ``oldest``: seconds that its oldest task has waited. Workers report queues with waiting
        tasks only, so a queue whose first task has just joined a line may not be reported yet.
        """
        is_new = self.workers > 0 and oldest < _REPORT_SECONDS
        return self.consumed.get(queue, is_new)


class FleetReader(LimitPlans):
    """Reads which workers live, and what none of them can start."""

    __slots__ = ()

    def fleet(self) -> Plan[Fleet]:
        """Return the live workers and the queues that they consume."""
        keys = self.keys
        names = [keys.membership, keys.consumed_queues, keys.temporary_queues, keys.quarantine]
        call = Call(script("read_fleet"), names, [self.now(), to_us(_CONSUMED_SECONDS)])
        now, workers, quarantined, queues = yield call
        head = keys.queue("").lines
        consumed: dict[str, bool] = {}
        for lines, flag in zip(queues[::2], queues[1::2], strict=True):
            name = lines.decode().removeprefix(head)
            # A worker that has just ended reported its queues a moment ago.
            consumed[name] = consumed.get(name, False) or (flag == b"1" and workers > 0)
        return Fleet(int(now), workers, quarantined, consumed)

    def find_stranded(self) -> Plan[tuple[Stranded, ...]]:
        """Return the waiting tasks that no live worker can start."""
        fleet = yield from self.fleet()
        queues = [queue for queue, consumed in fleet.consumed.items() if not consumed]
        found = []
        for queue in sorted(queues):
            names = [*self.keys.queue(queue)]
            tasks = yield Call(script("count_tasks"), names)
            if tasks:
                found.append(Stranded(queue, tasks, "queue", queue))
        if fleet.quarantined:
            found.append(Stranded("", fleet.quarantined, "task", ""))
        return tuple(found)
