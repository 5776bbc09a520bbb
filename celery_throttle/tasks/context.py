"""Limits that a task requests in its body: instead of waiting there, it steps into its line.

The task leaves its process, and runs once more from its beginning when the limits that refused have
room. That run begins with the units of the task's own limits, and of those that refused: a limit
requested in the body is served first from units the run already has, whatever their number. What
they lack is acquired. What they have over serves later calls, and is given back at the end of the
run if the take is known by its marks.

Only a run that has not sent a request steps out, so that nothing is paid twice: each call that took
what it asked for counts as a request. Other calls wait in place, or fail. No import of the worker's
parts: this runs in the pool's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

from celery._state import get_current_worker_task
from celery.app.task import Context
from celery.signals import task_postrun
from celery.utils.log import get_logger

from celery_throttle.errors import (
    ConfigurationError,
    SentRequestsError,
    Throttled,
    ThrottleError,
)
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.operations.acquire import Acquisition, Holder, Taken, settle_takes
from celery_throttle.operations.plan import Plan, Sleep
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.step_out import Item, TaskThrottled
from celery_throttle.tasks.task_limits import TaskLimits

logger = get_logger(__name__)

#: How often a refused call looks at the other calls of its run.
_OTHER_CALLS_SECONDS = 0.01

#: Field of a task's request in which a worker passes units to the run; empty for those of the
#: task's own limits. None where no worker would take the task back.
UNITS_FIELD = "throttle_units"

#: Header of messages that workers sent back or parked, or that were sent to a line: a dict; see
#: ``worker/task_state.py``. The task never sees it.
STATE_HEADER = "throttle_state"

#: In place of a limit's name in an item: the item counts how often runs stepped out because an API
#: refused a request. Its key are the limits of that request.
REFUSALS = "@resent"

#: In place of a limit's name in an item: the run settles what it requested.
SETTLES = "@settles"


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
        units = [item for item in items if item[0] != REFUSALS]
        passed = units or throttle.rules_file is not None
        limits = None if passed else throttle.task_limits(task)
        if limits is not None and limits.computed is None:  # what was computed is passed
            units = items_of(limits.requirement(request.args, request.kwargs))
        run = request.throttle_run = Run(throttle, units)
        run.restarts = bool(getattr(task, "throttle_restart", False))
        run.refusals = {str(item[1]): int(item[2]) for item in items if item[0] == REFUSALS}
    return run


def current_task() -> tuple[str, str] | None:
    """Return the id and the name of the task that a worker runs in this thread or greenlet."""
    task: Any = get_current_worker_task()
    return (str(task.request.id), task.name) if task is not None and task.request.id else None


def return_unused_units(throttle: AppLimits) -> None:
    """Let each run of a task of the app, in this process and its forks, give back at its end."""

    def on_end(task: Any = None, **_: Any) -> None:
        items = getattr(task.request, UNITS_FIELD, None)
        if items and any(isinstance(item, Taken) for item in items):
            run = current_run(throttle)
            if run is not None:
                run.end()

    task_postrun.connect(on_end, weak=False, dispatch_uid=f"throttle units {id(throttle)}")


class Run:
    """One run of a task.

    Args:
        throttle: the app's limits.
        units: the units that the run begins with: items, or items with their marks.

    Attributes:
        refusal: the last error with which the run should step out.
        refusals: how often runs of the task have stepped out because an API refused a request, by
            the limits of the request.
        restarts: whether the run may step out although it has sent requests.
    """

    def __init__(self, throttle: AppLimits, units: Iterable[Sequence[Any]]) -> None:
        self.refusal: TaskThrottled | None = None
        self.refusals: dict[str, int] = {}
        self.restarts = False
        self._throttle = throttle
        self._unused = [Taken(*unit) for unit in units]
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
        step out, but waits in place: the next run could not do better. So does a run whose own
        limits are in another shard, and one with other calls under way, which may send their
        requests. The latter steps out if they are all refused.

        Raises:
            TaskThrottled: the limits refuse, and the run steps out.
            Throttled: the limits refuse, and the run cannot wait so long.
        """
        requested = items_of(requirement)
        if mode == "reserve":
            requested.append((SETTLES, None, 1))

        def acquire_rest(rest: Requirement) -> Plan[Acquisition]:
            acquire = partial(self._throttle.plans.acquire, rest, mode=mode, holder=holder)
            return self._acquire_or_step_out(acquire, rest, max_wait, requested)

        return self._take(requirement, acquire_rest)

    def _acquire_or_step_out(
        self,
        acquire: Callable[[float], Plan[Acquisition]],
        rest: Requirement,
        max_wait: float,
        requested: Sequence[Item],
    ) -> Plan[Acquisition]:
        longest = self._throttle.settings.max_wait_in_place
        try:
            return (yield from acquire(max_wait))
        except Throttled as refusal:
            error = refusal
        if self._acquiring == 1 and self._may_step_out(rest):
            raise self._step_out(error, requested)
        if error.retry_after is not None and error.retry_after <= longest:
            try:
                return (yield from acquire(longest))
            except Throttled as refusal:
                error = refusal
        yield from self._await_other_calls()
        if self._may_step_out(rest):
            raise self._step_out(error, requested)
        if self._taken == 0:
            raise error
        raise SentRequestsError(error.limit, error.key, error.retry_after, error.paused, longest)

    def _may_step_out(self, rest: Requirement) -> bool:
        is_new = self._begun_with.isdisjoint((ref.name, ref.key) for ref in rest.refs)
        return is_new and (self.restarts or self._taken == 0) and self._is_in_shard(rest)

    def _is_in_shard(self, rest: Requirement) -> bool:
        """Whether the next run could begin with these units too: no call decides in two shards."""
        begun_with = (LimitRef(*item) for item in self._begun_with)
        try:
            self._throttle.check_together([*begun_with, *rest.refs])
        except ConfigurationError:
            return False
        return True

    def _await_other_calls(self) -> Plan[None]:
        """Wait until one of the other calls is to send its request, or all are refused as well."""
        self._acquiring -= 1
        try:
            while self._acquiring and self._taken == 0:
                yield Sleep(_OTHER_CALLS_SECONDS)
        finally:
            self._acquiring += 1

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
                (),
                has,
                from_server=False,
            )
        rest = Requirement(tuple(lacks), tuple(lacks.values()))
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
        marks = dict(zip(rest.refs, taken.marks, strict=True)) if taken.marks else {}
        return taken._replace(
            requirement=requirement,
            decision=taken.decision._replace(granted=requirement.units),
            marks=[marks.get(ref, ()) for ref in requirement.refs] if marks else (),
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
        is_sent = self._taken > (taken is not None)
        if is_sent or self._acquiring or not self._is_in_shard(requirement):
            return stop <= self._throttle.settings.max_wait_in_place
        label = " ".join(map(self._throttle.keys.field, requirement.refs))
        if self.refusals.get(label, 0) >= most:
            return False
        ref, endless = requirement.refs[0], stop == inf
        error = Throttled(ref.name, ref.key, None if endless else stop, stop if endless else 0.0)
        requested = [*items_of(requirement), (REFUSALS, label, 1)]
        if taken is not None and (taken.marks or any(item.marks for item in taken.task_items)):
            requested.append((SETTLES, None, 1))
        raise self._step_out(error, requested)

    def _step_out(self, error: Throttled, requested: Sequence[Item]) -> TaskThrottled:
        """Return the error with which the run steps out; a task that swallows it gets a warning."""
        self._throttle.swallowed.watch()
        self.refusal = TaskThrottled(
            error.limit, error.key, error.retry_after, requested, error.paused
        )
        return self.refusal

    def give_back(self, items: Iterable[Taken]) -> None:
        """Take back slots that the task's body released: the task holds them until its end."""
        self._unused += (item for item in items if self._has_slots(item.name))

    def end(self) -> None:
        """Refund the units that the run did not use, if their takes are known: it has ended."""
        unused, self._unused = self._unused, []
        parts = [(part, 0) for part in unused if part.marks and not self._has_slots(part.name)]
        try:
            if parts:
                self._throttle.run_plan(settle_takes(self._throttle.plans, parts))
        except ThrottleError as error:
            logger.warning("Units that a task did not use were not given back: %s", error)

    def _use(self, requirement: Requirement) -> tuple[list[Taken], dict[LimitRef, int]]:
        """Use unused units of the run; return those that it had, and the costs that it lacks.

        A slot is one slot, whatever the cost.
        """
        has, lacks = list[Taken](), dict[LimitRef, int]()
        for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
            left, slots = cost, self._has_slots(ref.name)
            for part in [part for part in self._unused if part[:2] == ref]:
                if left > 0:
                    used = part.cost if slots else min(left, part.cost)
                    left = 0 if slots else left - used
                    self._unused.remove(part)
                    has.append(part._replace(cost=used))
                    if used < part.cost:
                        self._unused.append(part._replace(cost=part.cost - used))
            if left > 0:
                lacks[ref] = left
        return has, lacks

    def _has_slots(self, name: str) -> bool:
        return bool(find_slot_indexes([name], self._throttle.limits))


def items_of(requirement: Requirement | None) -> list[Item]:
    """Return a requirement in the form that is sent between processes."""
    if requirement is None:
        return []
    both = zip(requirement.refs, requirement.costs, strict=True)
    return [(ref.name, ref.key, cost) for ref, cost in both]


def computed_headers(limits: TaskLimits, requirement: Requirement) -> dict[str, Any]:
    """Return the header by which a message has what was computed for it; none if nothing was."""
    return {STATE_HEADER: {"computed": items_of(requirement)}} if limits.computed else {}
