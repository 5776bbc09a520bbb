"""Limits within a task that a worker runs: where it would wait, it steps into its line instead.

It leaves its process, and runs once more from its beginning when the limit it met has room. It has
the units of its own limits when it starts, and of those that it met in its body the time before:
who asks for the same in its body is given these first. No import of the worker's parts: this runs
in the pool's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from celery._state import get_current_worker_task
from celery.exceptions import Ignore

from celery_throttle.errors import CostError, Throttled
from celery_throttle.limits.cost import MILLION, in_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rate import Concurrency
from celery_throttle.limits.requirement import Need, slot_places
from celery_throttle.operations.plans import Reserved
from celery_throttle.tasks import waiting_log

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.limits.limit import Limit
    from celery_throttle.operations.changes import Plan
    from celery_throttle.operations.plans import Holder

#: A name and key, and millionths of a unit of it; sent between processes.
Item = tuple[str, str | None, int]

#: Seconds for which a run waits in place for units that no run of it can have from the start.
PATIENCE = 60.0


#: Where a worker tells a run what it is given, as items; empty for what its task says. Without it
#: no worker would take the task back. It is a field of Celery's requests that its messages do not
#: have any more: one of our own would be a header of the task, and go on with what it sends.
GIVEN = "loglevel"


#: In place of a limit's name in an item, which tells then by which limits a request went that its
#: API refused, and how often runs have stepped aside for that.
RESENT = "@resent"


class TaskThrottled(Throttled, Ignore):
    """A limit refused within a task, which steps into its line. Celery only logs it.

    Attributes:
        limit: See :class:`Throttled`; so are ``key``, ``retry_after`` and ``paused``.
        met: What was asked for, and refused.
    """

    def __init__(
        self,
        limit: str,
        key: str | None,
        retry_after: float | None,
        met: Sequence[Item],
        paused: float = 0.0,
    ) -> None:
        super().__init__(limit, key, retry_after, paused)
        self.met = tuple(met)
        self.args = (limit, key, retry_after, self.met, *self._pause)

    @property
    def description(self) -> str:
        """What becomes of the task, for Celery's log."""
        return f"waits for {self._subject}"


def current_run(throttle: Throttle) -> Run | None:
    """The run of a task of the app in this thread or greenlet, if a worker would take it back."""
    task: Any = get_current_worker_task()
    # Not by task.app: where apps share a task's class, that is the app that registered it last.
    if task is None or throttle.app.tasks.get(task.name) != task:
        return None
    request = task.request
    given = getattr(request, GIVEN)
    if not isinstance(given, (tuple, list)):
        return None
    run: Run | None = request.__dict__.get("throttle_run")
    if run is None:
        resent = {str(label): int(times) for name, label, times in given if name == RESENT}
        given = [item for item in given if item[0] != RESENT]
        limits = None if given else throttle.task_limits(task)
        given = items_of(limits.need_of(request)) if limits else given
        run = request.throttle_run = Run(throttle, given, resent)
    return run


class Run:
    """One run of a task.

    Args:
        throttle: the app's limits.
        given: what it has from its start.
        resent: how many times runs of the task have stepped aside since an API refused, by the
            limits.

    Attributes:
        refusal: the last error with which the run was to step aside.
    """

    def __init__(
        self, throttle: Throttle, given: Sequence[Item], resent: Mapping[str, int]
    ) -> None:
        self.refusal: TaskThrottled | None = None
        self._throttle = throttle
        self._resent = resent
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
        try:
            taken = yield from self._ask(rest, lacks, max_wait, mode, holder)
        except BaseException as error:
            self._left += has
            if isinstance(error, Throttled):
                raise self._refusal(error, lacks) from None
            raise
        return taken._replace(need=need, marks=_marks(need, rest, taken.marks), given=has)

    def _refusal(self, error: Throttled, met: Sequence[Item]) -> TaskThrottled:
        """The error with which the run steps aside; it is seen to it that it does."""
        waiting_log.describe(TaskThrottled)
        self.refusal = TaskThrottled(error.limit, error.key, error.retry_after, met, error.paused)
        self._throttle.swallowed.watch()
        return self.refusal

    def resend(self, need: Need, taken: Reserved | None, stop: float, most: int) -> None:
        """An API has refused what was taken: the run steps aside, and the next one asks again.

        Unless the runs of this task have done so ``most`` times for these limits.

        Raises:
            TaskThrottled: it steps aside.
        """
        label = " ".join(map(self._throttle.keys.field, need.refs))
        if self._resent.get(label, 0) >= most:
            return
        given = () if taken is None else [item[:2] for item in taken.given]
        met = [item for item in items_of(need) if item[:2] not in given]
        ref, endless = need.refs[0], stop == inf
        error = Throttled(ref.name, ref.key, None if endless else stop, stop if endless else 0.0)
        raise self._refusal(error, [*met, (RESENT, label, 1)])

    def _ask(
        self,
        rest: Need,
        lacks: Sequence[Item],
        max_wait: float,
        mode: str,
        holder: Holder | None,
    ) -> Plan[Reserved]:
        """Ask for it; what no run could have from its start is waited for in place.

        Not while it is paused: that may be long, and then the whole task may as well wait.
        """
        acquire = self._throttle.plans.acquire
        longest = self._in_place(lacks)
        try:
            return (yield from acquire(rest, max_wait, mode=mode, holder=holder))
        except Throttled as error:
            if error.retry_after is None or error.retry_after > longest:
                raise
        return (yield from acquire(rest, PATIENCE, mode=mode, holder=holder))

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

    def _in_place(self, lacks: Sequence[Item]) -> float:
        """Seconds that a refusal may take to be waited for in place; 0 if the task steps aside.

        Raises:
            CostError: no run could be given all of it, nor wait for it in place.
        """
        longest = 0.0
        for name, key, cost in lacks:
            had = sum(one[2] for one in self._given if one[:2] == (name, key))
            for limit in self._throttle.limits.get(name, ()) if had else ():
                if isinstance(limit.rate, Concurrency):
                    longest = PATIENCE
                elif had + cost > limit.burst * MILLION:
                    count = limit.lowest or limit.rate.count
                    natural = limit.rate.period_us / count / 1e6 * cost / MILLION
                    if natural > PATIENCE:
                        raise _too_much(name, limit, had + cost)
                    longest = max(longest, 2 * natural + 0.1)
        return longest

    def _has_slots(self, item: Item) -> bool:
        return bool(slot_places(item[:1], self._throttle.limits))


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


def _marks(need: Need, rest: Need, marks: Sequence[int]) -> Sequence[int]:
    """What the script told of the rest, and of what was given nothing: as ``settle.lua`` reads it.

    Of each limit's name: since when, how many marks, and these, two numbers each.
    """
    told, place = {}, 0
    for ref in rest.refs if marks else ():
        size = 2 + 2 * marks[place + 1]
        told[ref] = marks[place : place + size]
        place += size
    return [number for ref in need.refs for number in told.get(ref, (0, 0))] if marks else marks


def _too_much(name: str, limit: Limit, cost: int) -> CostError:
    return CostError(
        f"a run of a task needs {in_units(cost)} units of limit {name!r} ({limit}) at once; "
        f"allowed: at most {limit.burst}, its burst, or a rate that emits the rest in "
        f"{PATIENCE:g} s"
    )
