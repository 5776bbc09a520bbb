"""Limits that a task requested in its body: its next run waits for them, and has their units.

They go with the task's message as a header, which is taken out before the task sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from celery_throttle.errors import LimitValueError, ThrottleError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import REFUSALS, UNITS_FIELD, Item, items_of
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.task_state import TaskState


def requirement_of(limits: TaskLimits, request: Any) -> Requirement:
    """Return what the arguments of a request require; read once for these limits.

    Raises:
        KeyValueError, CostError: an argument's value cannot be a key, or a cost.
    """
    if limits.fixed is not None:
        return limits.fixed
    state: TaskState = request.throttle_state
    if state.requirement is None or state.required_by is not limits:
        state.requirement = limits.requirement(request.args, request.kwargs)
        state.required_by = limits
    return state.requirement


def add_requested(throttle: AppLimits, request: Any, items: Iterable[Item]) -> None:
    """Add limits that a run has requested. Units that no run can begin with are left out.

    Raises:
        LimitValueError: the runs of the task requested too many.
    """
    state: TaskState = request.throttle_state
    more: list[Item] = []
    for name, key, cost in items:
        if name == REFUSALS:
            count = state.refusals.get(str(key), 0)
            state.refusals = {**state.refusals, str(key): count + cost}
        else:
            more.append((name, key, cost))
    state.requested = (*state.requested, *more)
    state.joined = None
    own = throttle.task_limits(request.task)
    _, units = _joined(throttle, request)
    own_count = len(requirement_of(own, request).refs) if own else 0
    state.requested = requested = tuple(units[own_count:])
    if len(requested) > tuning.MAX_REQUESTED_LIMITS:
        raise LimitValueError(
            f"task {request.task.name!r} has met {len(requested)} limits in its body, "
            f"{requested[-1][0]!r} the last; allowed: {tuning.MAX_REQUESTED_LIMITS}, or let its "
            "clients wait in place (max_wait)"
        )


def limits_of(throttle: AppLimits, request: Any) -> TaskLimits | None:
    """Return the limits of a request: those of its task, and those that its runs requested."""
    if request.throttle_state.requested:
        return _joined(throttle, request)[0]
    return throttle.task_limits(request.task)


def has_limits(throttle: AppLimits, request: Any) -> bool:
    """Return whether a request has limits; True if they are wrong, for which the gate fails it."""
    try:
        return limits_of(throttle, request) is not None
    except ThrottleError:
        return True


def pass_units(request: Any) -> None:
    """Tell the run that begins which units it has, so it need not take them in its body."""
    state: TaskState = request.throttle_state
    throttle: AppLimits = request.app.throttle
    units: Sequence[Item] = ()
    if state.requested:
        units = _joined(throttle, request)[1]
    elif throttle.rules_file is not None:
        # Another process may use another version of the rules file.
        limits = throttle.task_limits(request.task)
        units = items_of(requirement_of(limits, request)) if limits else ()
    if state.refusals:
        units = (*units, *((REFUSALS, limits, times) for limits, times in state.refusals.items()))
    request.request_dict[UNITS_FIELD] = units


def _joined(throttle: AppLimits, request: Any) -> tuple[TaskLimits, Sequence[Item]]:
    """Join the limits of a task and those requested; return them, and the units for its next run.

    A run cannot begin with more units than the burst, so it waits for the rest in place.
    """
    state: TaskState = request.throttle_state
    if state.joined is not None:
        return state.joined
    own = throttle.task_limits(request.task)
    costs: dict[LimitRef, int] = {}
    units: list[Item] = []
    items = [] if own is None else items_of(requirement_of(own, request))
    for name, key, cost in (*items, *state.requested):
        ref = LimitRef(name, key)
        limits = throttle.limits.get(name, ())
        total = costs.get(ref, 0) + cost
        # A task holds one slot of a limit, however often it requests it.
        again = ref in costs and find_slot_indexes([name], throttle.limits)
        if ref in costs and (again or any(total > limit.burst * MILLION for limit in limits)):
            continue
        costs[ref] = total
        units.append((name, key, cost))
    refs = tuple(costs)
    slots = find_slot_indexes((ref.name for ref in refs), throttle.limits)
    base = TaskLimits.none() if own is None else own
    requirement = Requirement(refs, tuple(costs.values()))
    state.joined = replace(base, fixed=requirement, slots=slots), units
    return state.joined
