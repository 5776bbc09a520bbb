"""The limits of a request: those that its task declares, and those that refused its last run.

Limits that refused in the body of a task go with its message as a header, which is taken out before
the task sees it: the next run waits for them, and has their units. Celery's tasks behind
``chunks``, ``map`` and ``starmap`` call another task for each element. They declare what all these
calls take together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery_throttle.errors import ThrottleError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import (
    MAX_LIMITS_PER_TASK,
    Requirement,
    check_ref_count,
    find_slot_indexes,
)
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import REFUSALS, SETTLES, UNITS_FIELD, items_of
from celery_throttle.tasks.step_out import Item
from celery_throttle.tasks.task_limits import TaskLimits
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
    assert state.requirement is not None  # noqa: S101  # computed limits are fixed by _joined()
    return state.requirement


def set_requested(request: Any, items: Iterable[Item]) -> None:
    """Set the limits that refused the last run, in place of those of the run before."""
    state: TaskState = request.throttle_state
    requested: list[Item] = []
    state.settles = False
    for name, key, cost in items:
        if name == REFUSALS:
            count = state.refusals.get(str(key), 0)
            state.refusals = {**state.refusals, str(key): count + cost}
        elif name == SETTLES:
            state.settles = True
        else:
            requested.append((name, key, cost))
    state.requested, state.joined = tuple(requested), None


def limits_of(throttle: AppLimits, request: Any) -> TaskLimits | None:
    """Return the limits of a request: those of its task, and those that refused its last run.

    Raises:
        ThrottleError: they are wrong, or a key or a cost of an element is, or they are in two
            shards.
    """
    task: TaskState = request.throttle_state
    if task.shard_error is not None:
        raise task.shard_error
    if task.requested or request.task.name in _MAPPING_TASKS:
        return _joined(throttle, request)
    limits = throttle.task_limits(request.task)
    return limits if limits is None or limits.computed is None else _joined(throttle, request)


def has_limits(throttle: AppLimits, request: Any) -> bool:
    """Return whether a request has limits; True if they are wrong, for which the gate fails it.

    Also if they are not computed yet: only the gate computes them.
    """
    try:
        if request.throttle_state.joined is None:
            limits = throttle.task_limits(request.task)
            if limits is not None and limits.computed is not None:
                return True
        return limits_of(throttle, request) is not None
    except ThrottleError:
        return True


def pass_units(request: Any) -> None:
    """Pass the units of a run to it, so it need not take them in its body."""
    state: TaskState = request.throttle_state
    throttle: AppLimits = request.app.throttle
    units: Sequence[Sequence[Any]] = state.takes
    is_joined = state.requested or state.computed is not None or request.task.name in _MAPPING_TASKS
    # Another process may use another version of the rules file.
    if not units and (is_joined or throttle.rules_file is not None):
        limits = limits_of(throttle, request)
        units = items_of(requirement_of(limits, request)) if limits else ()
    if state.refusals:
        units = (*units, *((REFUSALS, limits, times) for limits, times in state.refusals.items()))
    request.request_dict[UNITS_FIELD] = units


def _calls(throttle: AppLimits, request: Any) -> list[tuple[TaskLimits, Any, Any]]:
    """Return the calls whose limits a request has, each with its arguments.

    A mapping task has those of the task that it calls, for each element.
    """
    limits = throttle.task_limits(request.task)
    calls = [] if limits is None else [(limits, request.args, request.kwargs)]
    return [*calls, *_mapped_calls(throttle, request)]


def _mapped_calls(throttle: AppLimits, request: Any) -> list[tuple[TaskLimits, Any, Any]]:
    """Return the calls that a mapping task makes, if the task that it calls has limits."""
    arguments_of = _MAPPING_TASKS.get(request.task.name)
    if arguments_of is None:
        return []
    given = {**dict(zip(("task", "it"), request.args, strict=False)), **request.kwargs}
    try:
        task = request.app.tasks[given["task"]["task"]]
        calls = [arguments_of(element) for element in given["it"]]
    except (LookupError, TypeError):  # it fails in its body, as in plain Celery
        return []
    limits = throttle.task_limits(task)
    return [] if limits is None else [(limits, arguments, {}) for arguments in calls]


def _joined(throttle: AppLimits, request: Any) -> TaskLimits | None:
    """Join what a task declares and what its last run requested; None if there are no limits."""
    state: TaskState = request.throttle_state
    if state.joined is not None:
        return state.joined[0]
    calls = _calls(throttle, request)
    if any(limits.computed is not None for limits, *_ in calls):
        if state.computed is None:
            requirement = _declared(calls, throttle)
            state.computed = tuple(items_of(requirement))
        else:
            requirement = _merged(state.computed, throttle)
    else:
        requirement = _declared(calls, throttle)
    if state.requested:
        # A limit and key that the task declares counts as declared only: no run begins with more.
        own = () if requirement is None else requirement.refs
        items = [*items_of(requirement), *(each for each in state.requested if each[:2] not in own)]
        requirement = _merged(items, throttle)
    joined = None
    if requirement is not None:
        limits = calls[-1][0] if calls else TaskLimits.none()
        settles = limits.settles or state.settles
        joined = limits.of_call(requirement, throttle.limits, settles=settles)
    state.joined = (joined,)
    return joined


def _declared(
    calls: Sequence[tuple[TaskLimits, Any, Any]], throttle: AppLimits
) -> Requirement | None:
    """Return what calls require together; None if no limit applies."""
    found = [limits.requirement(args, kwargs) for limits, args, kwargs in calls]
    if len(found) == 1:
        return found[0]
    requirement = _merged([item for each in found for item in items_of(each)], throttle)
    if requirement is not None:
        check_ref_count(requirement.refs, MAX_LIMITS_PER_TASK)
    return requirement


def _merged(items: Iterable[Item], throttle: AppLimits) -> Requirement | None:
    """Return the requirement of items, each limit and key once; None if there are none."""
    costs: dict[LimitRef, int] = {}
    for name, key, cost in items:
        ref = LimitRef(name, key)
        # A task holds one slot of a limit, however often it requests it.
        if ref in costs and find_slot_indexes([name], throttle.limits):
            continue
        costs[ref] = costs.get(ref, 0) + cost
    return Requirement(tuple(costs), tuple(costs.values())) if costs else None
