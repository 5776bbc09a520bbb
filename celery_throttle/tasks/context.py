"""Limits that a task requests in its body: instead of waiting there, it steps into its line.

The task leaves its process, and runs once more from its beginning when the limit that it met has
room. That run begins with the units of the task's own limits, and of those that were requested in
its body before: a limit requested in the body is served first from units the run already has. No
import of the worker's parts: this runs in the pool's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from celery._state import get_current_worker_task
from celery.app.task import Context
from celery.exceptions import Ignore

from celery_throttle.errors import CostError, Throttled
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.tasks import waiting_log
from celery_throttle.tasks.app_limits import AppLimits

#: A name and key, and millionths of a unit of it; sent between processes.
Item = tuple[str, str | None, int]

#: Longest wait in seconds of a run in place, for units that no run can begin with.
MAX_WAIT_IN_PLACE_SECONDS = 60.0

#: Field of a task's request in which a worker passes units to the run, as items; empty for those of
#: the task's own limits. None where no worker would take the task back.
UNITS_FIELD = "throttle_units"

#: In place of a limit's name in an item: the item counts how often runs stepped out because an API
#: refused a request. Its key are the limits of that request.
REFUSALS = "@resent"


def declare_units_field() -> None:
    """Let Celery know the field: it takes unknown ones for headers, and sends them on."""
    if not hasattr(Context, UNITS_FIELD):
        setattr(Context, UNITS_FIELD, None)


class TaskThrottled(Throttled, Ignore):
    """A limit refused within a task, which steps into its line. Celery only logs this error.

    Attributes:
        limit: See :class:`Throttled`; so for ``key``, ``retry_after`` and ``paused``.
        met: The limits that were requested, and refused.
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
        self.args = (limit, key, retry_after, self.met, paused)

    @property
    def description(self) -> str:
        """Text for Celery's log: that the task waits, and for which limit."""
        return f"waits for {self._subject}"


def current_run(throttle: AppLimits) -> Run | None:
    """Return the run of a task of the app in this thread or greenlet, if it may step out."""
    task: Any = get_current_worker_task()
    # Not by task.app: where apps share a task's class, that is the app that registered it last.
    if task is None or throttle.app.tasks.get(task.name) != task:
        return None
    request = task.request
    items = getattr(request, UNITS_FIELD)
    if not isinstance(items, (tuple, list)):
        return None
    run: Run | None = request.__dict__.get("throttle_run")
    if run is None:
        refusals = {str(label): int(times) for name, label, times in items if name == REFUSALS}
        units = [item for item in items if item[0] != REFUSALS]
        passed = units or throttle.rules_file is not None
        limits = None if passed else throttle.task_limits(task)
        units = items_of(limits.requirement(request.args, request.kwargs)) if limits else units
        run = request.throttle_run = Run(throttle, units, refusals)
    return run


class Run:
    """One run of a task.

    Args:
        throttle: the app's limits.
        units: the units that the run begins with.
        refusals: how often runs of the task have stepped out because an API refused a request, by
            the limits of the request.

    Attributes:
        refusal: the last error with which the run should step out.
    """

    def __init__(
        self, throttle: AppLimits, units: Sequence[Item], refusals: Mapping[str, int]
    ) -> None:
        self.refusal: TaskThrottled | None = None
        self._throttle = throttle
        self._refusals = refusals
        self._units = [(str(name), key, int(cost)) for name, key, cost in units]
        self._unused = list(self._units)

    def acquire(
        self,
        requirement: Requirement,
        max_wait: float,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Use units that the run has, and acquire the rest.

        Raises:
            TaskThrottled: the limits refuse, or do not have room within ``max_wait`` seconds.
        """

        def acquire_rest(rest: Requirement) -> Plan[Acquisition]:
            try:
                return (yield from self._acquire(rest, max_wait, mode, holder))
            except Throttled as error:
                raise self._refusal(error, items_of(rest)) from None

        return self._take(requirement, acquire_rest)

    def try_acquire(self, requirement: Requirement, max_wait: float | None) -> Plan[Acquisition]:
        """Use units that the run has, and acquire the rest, or return the refusal."""
        return self._take(
            requirement, lambda rest: self._throttle.plans.try_acquire(rest, max_wait)
        )

    def _take(
        self, requirement: Requirement, acquire_rest: Callable[[Requirement], Plan[Acquisition]]
    ) -> Plan[Acquisition]:
        """Use units that the run has, and acquire the rest; if that fails, keep them unused."""
        has, lacks = self._use(requirement)
        if not lacks:
            return Acquisition(
                requirement,
                Decision.allowance(requirement.units),
                (0, 0) * len(requirement.refs),
                has,
                from_server=False,
            )
        rest = Requirement(
            tuple(LimitRef(*item[:2]) for item in lacks), tuple(item[2] for item in lacks)
        )
        try:
            taken = yield from acquire_rest(rest)
        except BaseException:
            self._unused += has
            raise
        if taken.refusing is not None:
            self._unused += has
            return taken
        return taken._replace(
            requirement=requirement,
            decision=taken.decision._replace(granted=requirement.units),
            marks=_marks(requirement, rest, taken.marks),
            task_items=has,
        )

    def _refusal(self, error: Throttled, met: Sequence[Item]) -> TaskThrottled:
        """Return the error with which the run steps out; a task that swallows it gets a warning."""
        waiting_log.describe(TaskThrottled)
        self.refusal = TaskThrottled(error.limit, error.key, error.retry_after, met, error.paused)
        self._throttle.swallowed.watch()
        return self.refusal

    def resend(
        self, requirement: Requirement, taken: Acquisition | None, stop: float, most: int
    ) -> None:
        """Step out because an API refused a request; the next run takes the units anew.

        Nothing happens if the runs of this task have done so ``most`` times for these limits.

        Raises:
            TaskThrottled: the run steps out.
        """
        label = " ".join(map(self._throttle.keys.field, requirement.refs))
        if self._refusals.get(label, 0) >= most:
            return
        given = () if taken is None else [item[:2] for item in taken.task_items]
        met = [item for item in items_of(requirement) if item[:2] not in given]
        ref, endless = requirement.refs[0], stop == inf
        error = Throttled(ref.name, ref.key, None if endless else stop, stop if endless else 0.0)
        raise self._refusal(error, [*met, (REFUSALS, label, 1)])

    def _acquire(
        self,
        rest: Requirement,
        max_wait: float,
        mode: str,
        holder: Holder | None,
    ) -> Plan[Acquisition]:
        """Acquire units; wait in place for those that no run can begin with.

        A paused limit is not waited for in place: that may take long, so the task steps out.
        """
        acquire = self._throttle.plans.acquire
        longest = self._max_wait_in_place(items_of(rest))
        try:
            return (yield from acquire(rest, max_wait, mode=mode, holder=holder))
        except Throttled as error:
            if error.retry_after is None or error.retry_after > longest:
                raise
        return (yield from acquire(rest, MAX_WAIT_IN_PLACE_SECONDS, mode=mode, holder=holder))

    def give_back(self, items: Iterable[Item]) -> None:
        """Take back slots that the task's body released: the task holds them until its end."""
        self._unused += filter(self._has_slots, items)

    def _use(self, requirement: Requirement) -> tuple[list[Item], list[Item]]:
        """Use unused units of the run; return those that it had, and those that it lacks.

        A slot is one slot, whatever the cost.
        """
        has, lacks = list[Item](), list[Item]()
        for item in items_of(requirement):
            same = 2 if self._has_slots(item) else 3
            found = next((one for one in self._unused if one[:same] == item[:same]), None)
            if found is None:
                lacks.append(item)
            else:
                self._unused.remove(found)
                has.append(found)
        return has, lacks

    def _max_wait_in_place(self, lacks: Sequence[Item]) -> float:
        """Return the longest wait in seconds that the run makes in place; 0 if it steps out.

        Raises:
            CostError: no run can begin with all of the units, nor wait for them in place.
        """
        longest = 0.0
        for name, key, cost in lacks:
            had = sum(one[2] for one in self._units if one[:2] == (name, key))
            for limit in self._throttle.limits.get(name, ()) if had else ():
                if isinstance(limit.rate, Concurrency):
                    longest = MAX_WAIT_IN_PLACE_SECONDS
                elif had + cost > limit.burst * MILLION:
                    count = limit.lowest or limit.rate.count
                    natural = limit.rate.period_us / count / 1e6 * cost / MILLION
                    if natural > MAX_WAIT_IN_PLACE_SECONDS:
                        raise _too_much(name, limit, had + cost)
                    longest = max(longest, 2 * natural + 0.1)
        return longest

    def _has_slots(self, item: Item) -> bool:
        return bool(find_slot_indexes(item[:1], self._throttle.limits))


def items_of(requirement: Requirement) -> list[Item]:
    """Return a requirement in the form that is sent between processes."""
    both = zip(requirement.refs, requirement.costs, strict=True)
    return [(ref.name, ref.key, cost) for ref, cost in both]


def _marks(requirement: Requirement, rest: Requirement, marks: Sequence[int]) -> Sequence[int]:
    """Return the marks of a whole requirement as ``settle.lua`` reads them.

    The script returned marks for the rest; units that the run had before have none. For each limit
    name: since when it is in force, how many marks, and these, two numbers each.
    """
    by_ref, index = {}, 0
    for ref in rest.refs if marks else ():
        size = 2 + 2 * marks[index + 1]
        by_ref[ref] = marks[index : index + size]
        index += size
    return (
        [number for ref in requirement.refs for number in by_ref.get(ref, (0, 0))]
        if marks
        else marks
    )


def _too_much(name: str, limit: Limit, cost: int) -> CostError:
    return CostError(
        f"a run of a task needs {to_units(cost)} units of limit {name!r} ({limit}) at once; "
        f"allowed: at most {limit.burst}, its burst, or a rate that emits the rest in "
        f"{MAX_WAIT_IN_PLACE_SECONDS:g} s"
    )
