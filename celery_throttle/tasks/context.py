"""Limits that a task requests in its body: instead of waiting there, it steps into its line.

The task leaves its process, and runs once more from its beginning when the limits that refused have
room. That run begins with the units of the task's own limits, and of those that refused: a limit
requested in the body is served first from units the run already has.

Only a run that has not sent a request steps out, so that nothing is paid twice: each call that took
what it asked for counts as a request. Other calls wait in place, or fail. No import of the worker's
parts: this runs in the pool's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from celery._state import get_current_worker_task
from celery.app.task import Context

from celery_throttle.errors import Throttled
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.step_out import Item, TaskThrottled

#: Longest wait in seconds of a run that does not step out.
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
        self._unused = [(str(name), key, int(cost)) for name, key, cost in units]
        #: Names and keys of the units that the run began with.
        self._begun_with = {item[:2] for item in self._unused}
        self._taken = 0  # calls that took what they asked for: each sends a request
        self._acquiring = 0  # calls under way

    def acquire(
        self,
        requirement: Requirement,
        max_wait: float,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """Use units that the run has, and acquire the rest. If the limits refuse, step out.

        A run that waited for these limits before, or begins with units of them anyway, does not
        step out, but waits in place: the next run could not do better.

        Raises:
            TaskThrottled: the limits refuse, and the run steps out.
            Throttled: the limits refuse, and the run cannot wait so long.
        """
        acquire = partial(self._throttle.plans.acquire, mode=mode, holder=holder)

        def acquire_rest(rest: Requirement) -> Plan[Acquisition]:
            try:
                return (yield from acquire(rest, max_wait))
            except Throttled as error:
                anew = self._begun_with.isdisjoint((ref.name, ref.key) for ref in rest.refs)
                if anew and self._taken == 0 and self._acquiring == 1:
                    raise self._step_out(error, items_of(requirement)) from None
                if error.retry_after is None or error.retry_after > MAX_WAIT_IN_PLACE_SECONDS:
                    raise
            return (yield from acquire(rest, MAX_WAIT_IN_PLACE_SECONDS))

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
            self._taken += 1
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
        self._acquiring += 1
        try:
            taken = yield from acquire_rest(rest)
        except BaseException:
            self._unused += has
            raise
        finally:
            self._acquiring -= 1
        if taken.refusing is not None:
            self._unused += has
            return taken
        self._taken += 1
        return taken._replace(
            requirement=requirement,
            decision=taken.decision._replace(granted=requirement.units),
            marks=_marks(requirement, rest, taken.marks),
            task_items=has,
        )

    def resend(
        self, requirement: Requirement, taken: Acquisition | None, stop: float, most: int
    ) -> bool:
        """Decide what becomes of a request that its API refused, and that may be sent again.

        The run steps out, and the next run takes the units anew. A run that has sent other
        requests waits in place. The runs of a task step out ``most`` times for these limits.

        Returns:
            Whether to wait in place for ``stop`` seconds and send the request again.

        Raises:
            TaskThrottled: the run steps out.
        """
        if self._taken > (taken is not None) or self._acquiring:
            return stop <= MAX_WAIT_IN_PLACE_SECONDS
        label = " ".join(map(self._throttle.keys.field, requirement.refs))
        if self._refusals.get(label, 0) >= most:
            return False
        ref, endless = requirement.refs[0], stop == inf
        error = Throttled(ref.name, ref.key, None if endless else stop, stop if endless else 0.0)
        raise self._step_out(error, [*items_of(requirement), (REFUSALS, label, 1)])

    def _step_out(self, error: Throttled, requested: Sequence[Item]) -> TaskThrottled:
        """Return the error with which the run steps out; a task that swallows it gets a warning."""
        self._throttle.swallowed.watch()
        self.refusal = TaskThrottled(
            error.limit, error.key, error.retry_after, requested, error.paused
        )
        return self.refusal

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

    def _has_slots(self, item: Item) -> bool:
        return bool(find_slot_indexes(item[:1], self._throttle.limits))


def items_of(requirement: Requirement) -> list[Item]:
    """Return a requirement in the form that is sent between processes."""
    both = zip(requirement.refs, requirement.costs, strict=True)
    return [(ref.name, ref.key, cost) for ref, cost in both]


def _marks(requirement: Requirement, rest: Requirement, marks: Sequence[int]) -> Sequence[int]:
    """Return the marks of a whole requirement as ``settle_reservation.lua`` reads them.

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
