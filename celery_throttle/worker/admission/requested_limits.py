"""The limits of a request: those that its task declares, and those that its runs requested.

Limits that a task requested in its body go with its message as a header, which is taken out before
the task sees it: the next run waits for them, and has their units. Celery's tasks behind
``chunks``, ``map`` and ``starmap`` call another task for each element. They declare what all these
calls take together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from celery_throttle.errors import LimitValueError, ThrottleError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import (
    MAX_LIMITS_PER_TASK,
    Requirement,
    check_ref_count,
    find_slot_indexes,
)
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import REFUSALS, UNITS_FIELD, Item, items_of
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.task_state import TaskState

#: Celery's tasks that call another task for each element, and the arguments of such a call.
_MAPPING_TASKS: dict[str, Callable[[Any], Sequence[Any]]] = {
    "celery.map": lambda element: (element,),
    "celery.starmap": tuple,
}


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
    _, units, own_count = _joined(throttle, request)
    state.requested = requested = tuple(units[own_count:])
    if len(requested) > tuning.MAX_REQUESTED_LIMITS:
        raise LimitValueError(
            f"task {request.task.name!r} has met {len(requested)} limits in its body, "
            f"{requested[-1][0]!r} the last; allowed: {tuning.MAX_REQUESTED_LIMITS}, or let its "
            "clients wait in place (max_wait)"
        )


def limits_of(throttle: AppLimits, request: Any) -> TaskLimits | None:
    """Return the limits of a request: those of its task, and those that its runs requested.

    Raises:
        ThrottleError: they are wrong, or a key or a cost of an element is.
    """
    if request.throttle_state.requested or request.task.name in _MAPPING_TASKS:
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
    if state.requested or request.task.name in _MAPPING_TASKS:
        units = _joined(throttle, request)[1]
    elif throttle.rules_file is not None:
        # Another process may use another version of the rules file.
        limits = throttle.task_limits(request.task)
        units = items_of(requirement_of(limits, request)) if limits else ()
    if state.refusals:
        units = (*units, *((REFUSALS, limits, times) for limits, times in state.refusals.items()))
    request.request_dict[UNITS_FIELD] = units


def _declared(throttle: AppLimits, request: Any) -> tuple[TaskLimits | None, list[Item]]:
    """Return the limits that the task of a request declares, and what the request takes from them.

    For a mapping task, these are the limits of the task that it calls.
    """
    limits = throttle.task_limits(request.task)
    items = [] if limits is None else items_of(requirement_of(limits, request))
    arguments_of = _MAPPING_TASKS.get(request.task.name)
    if arguments_of is None:
        return limits, items
    given = {**dict(zip(("task", "it"), request.args, strict=False)), **request.kwargs}
    try:
        task = request.app.tasks[given["task"]["task"]]
        calls = [arguments_of(element) for element in given["it"]]
    except (LookupError, TypeError):  # it fails in its body, as in plain Celery
        return limits, items
    of_element = throttle.task_limits(task)
    if of_element is None:
        return limits, items
    for arguments in calls:
        items += items_of(of_element.fixed or of_element.requirement(arguments, {}))
    return of_element, items


def _joined(throttle: AppLimits, request: Any) -> tuple[TaskLimits | None, Sequence[Item], int]:
    """Join what a task declares and what its runs requested.

    A run cannot begin with more requested units than the burst, so it waits for the rest in place.

    Returns:
        The limits, if there are any; the units for the next run, those that the task declares
        first; and the number of these.
    """
    state: TaskState = request.throttle_state
    if state.joined is not None:
        return state.joined
    declared, items = _declared(throttle, request)
    costs: dict[LimitRef, int] = {}
    units: list[Item] = []
    own_count = 0
    for index, (name, key, cost) in enumerate((*items, *state.requested)):
        is_own = index < len(items)
        ref = LimitRef(name, key)
        limits = throttle.limits.get(name, ())
        total = costs.get(ref, 0) + cost
        # A task holds one slot of a limit, however often it requests it.
        again = ref in costs and find_slot_indexes([name], throttle.limits)
        too_much = not is_own and any(total > limit.burst * MILLION for limit in limits)
        if ref in costs and (again or too_much):
            continue
        costs[ref] = total
        units.append((name, key, cost))
        own_count += is_own
    refs = tuple(costs)
    joined = None
    if refs:
        check_ref_count(units[:own_count], MAX_LIMITS_PER_TASK)
        slots = find_slot_indexes((ref.name for ref in refs), throttle.limits)
        requirement = Requirement(refs, tuple(costs.values()))
        joined = replace(declared or TaskLimits.none(), fixed=requirement, slots=slots)
    state.joined = joined, units, own_count
    return state.joined
