"""Limits within a task that a worker runs: where it would wait, it steps into its line instead.

It leaves its process, and runs once more from its beginning when the limit it met has room. It has
the units of its own limits when it starts, and of those that it met in its body the time before:
who asks for the same in its body is given these first. No import of the worker's parts: this runs
in the pool's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from celery._state import get_current_worker_task
from celery.exceptions import Ignore

from celery_throttle.costs import MILLION
from celery_throttle.decision import Decision
from celery_throttle.errors import Throttled
from celery_throttle.needs import Need, has_slots
from celery_throttle.plans import Reserved
from celery_throttle.scope import LimitRef

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.changes import Plan
    from celery_throttle.plans import Holder

#: A name and key, and millionths of a unit of it; sent between processes.
Item = tuple[str, str | None, int]

#: Seconds for which a run waits in place for units that no run of it can have from the start.
PATIENCE = 60.0


class Delivered(dict[str, Any]):
    """Celery's delivery info of a request, as the task sees it, and what its run is given.

    Where it is a plain dict, no worker would take the task back.

    Attributes:
        given: what the run has from its start.
    """

    given: Sequence[Item] = ()


class TaskThrottled(Throttled, Ignore):
    """A limit refused within a task, which steps into its line. Celery does nothing about it.

    Attributes:
        limit: See :class:`Throttled`; so are ``key`` and ``retry_after``.
        met: What was asked for, and refused.
    """

    def __init__(
        self, limit: str, key: str | None, retry_after: float | None, met: Sequence[Item]
    ) -> None:
        super().__init__(limit, key, retry_after)
        self.met = tuple(met)
        self.args = (limit, key, retry_after, self.met)


def current_run(throttle: Throttle) -> Run | None:
    """The run of a task of the app in this thread or greenlet, if a worker would take it back."""
    task: Any = get_current_worker_task()
    if task is None or getattr(task.app, "throttle", None) is not throttle:
        return None
    request = task.request
    if not isinstance(request.delivery_info, Delivered):
        return None
    run: Run | None = request.__dict__.get("throttle_run")
    if run is None:
        run = request.throttle_run = Run(throttle, request.delivery_info.given)
    return run


class Run:
    """One run of a task.

    Args:
        throttle: the app's limits.
        given: what it has from its start.
    """

    def __init__(self, throttle: Throttle, given: Sequence[Item]) -> None:
        self._throttle = throttle
        self._given = [(str(name), key, int(cost)) for name, key, cost in given]
        self._left = list(self._given)

    def taking(
        self, need: Need, max_wait: float, *, mode: str = "take", holder: Holder | None = None
    ) -> Plan[Reserved]:
        """Take what the run has, and ask for the rest.

        Raises:
            TaskThrottled: it is refused, or not in time.
        """
        has, lacks = self._use(need)
        if not lacks:
            return Reserved(need, _given(need), (0, 0) * len(need.refs), has, asked=False)
        rest = Need(tuple(LimitRef(*item[:2]) for item in lacks), tuple(item[2] for item in lacks))
        wait = PATIENCE if self._is_beyond(lacks) else max_wait
        try:
            taken = yield from self._throttle.plans.acquire(
                rest, max(wait, max_wait), mode=mode, holder=holder
            )
        except BaseException as error:
            self._left += has
            if isinstance(error, Throttled):
                raise TaskThrottled(error.limit, error.key, error.retry_after, lacks) from None
            raise
        return taken._replace(given=has)

    def give_back(self, items: Iterable[Item]) -> None:
        """Slots that the task holds until its end are not in use any more."""
        self._left += filter(self._has_slots, items)

    def _use(self, need: Need) -> tuple[list[Item], list[Item]]:
        """Use what the run has left of a need, and tell what it lacks.

        A slot is one, whatever the cost.
        """
        has, lacks = list[Item](), list[Item]()
        for item in items_of(need):
            same = 2 if self._has_slots(item) else 3
            found = next((one for one in self._left if one[:same] == item[:same]), None)
            if found is None:
                lacks.append(item)
            else:
                self._left.remove(found)
                has.append(found)
        return has, lacks

    def _is_beyond(self, lacks: Sequence[Item]) -> bool:
        """Whether no run could have all of it from its start, besides what this one has."""
        for name, key, cost in lacks:
            had = sum(one[2] for one in self._given if one[:2] == (name, key))
            limits = self._throttle.limits.get(name, ())
            if had and any(had + cost > limit.burst * MILLION for limit in limits):
                return True
            if had and any(map(has_slots, limits)):
                return True
        return False

    def _has_slots(self, item: Item) -> bool:
        return any(map(has_slots, self._throttle.limits.get(item[0], ())))


def items_of(need: Need) -> list[Item]:
    """A need, as it is sent between processes."""
    both = zip(need.refs, need.costs, strict=True)
    return [(ref.name, ref.key, cost) for ref, cost in both]


def _given(need: Need) -> Decision:
    return Decision(
        allowed=True,
        limit=0,
        remaining=0,
        retry_after=0.0,
        reset_after=0.0,
        bound_by=None,
        granted=need.units,
    )
