"""The limits of a request: those that its task declares, and those that refused its last run.

Limits that refused in the body of a task go with its message as a header, which is taken out before
the task sees it: the next run waits for them, and has their units. Celery's tasks behind
``chunks``, ``map`` and ``starmap`` call another task for each element. They declare what all these
calls take together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

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


class NotComputedError(Exception):
    """Functions decide which limits a request has, and they were not called: see `functions.py`."""


def limits_of(throttle: AppLimits, request: Any) -> TaskLimits | None:
    """Return the limits of a request: those of its task, and those that refused its last run.

    Raises:
        ThrottleError: they are wrong, or a key or a cost of an element is, or they are in two
            shards.
        NotComputedError: only the functions of the task know.
    """
    state: TaskState = request.throttle_state
    if state.shard_error is not None:
        raise state.shard_error
    if state.joined is not None:
        return state.joined[0]
    task = request.task
    if not (state.requested or task.name in _MAPPING_TASKS):
        limits = throttle.task_limits(task)
        if limits is None or limits.computed is None:
            return limits
        if state.computed is None and limits.computed.functions:
            raise NotComputedError
    calls = calls_of(throttle, request)
    if all(call.limits.computed is None for call in calls):
        return _join(throttle, request, calls, require(throttle, calls))
    if state.computed is not None:
        return _join(throttle, request, calls, _merged(throttle, state.computed))
    if any(call.limits.functions for call in calls):  # of a mapping task
        raise NotComputedError
    return set_computed(throttle, request, calls, require(throttle, calls))


def has_limits(throttle: AppLimits, request: Any) -> bool:
    """Return whether a request has limits; True if they are wrong, for which the gate fails it.

    Also if they are not computed yet: only the gate computes them.
    """
    try:
        return limits_of(throttle, request) is not None
    except (ThrottleError, NotComputedError):
        return True


def pass_units(request: Any) -> None:
    """Pass the units of a run to it, so it need not take them in its body."""
    state: TaskState = request.throttle_state
    throttle: AppLimits = request.app.throttle
    units: Sequence[Sequence[Any]] = state.takes
    is_joined = state.requested or state.computed is not None or request.task.name in _MAPPING_TASKS
    # Another process may use another version of the rules file.
    if not units and (is_joined or throttle.rules_file is not None):
        with suppress(NotComputedError):
            limits = limits_of(throttle, request)
            units = items_of(requirement_of(limits, request)) if limits else ()
    if state.refusals:
        units = (*units, *((REFUSALS, limits, times) for limits, times in state.refusals.items()))
    request.request_dict[UNITS_FIELD] = units


class LimitedCall(NamedTuple):
    """A call of a task, and the limits that the task declares."""

    limits: TaskLimits
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def calls_of(throttle: AppLimits, request: Any) -> list[LimitedCall]:
    """Return the calls whose limits a request has: of its task, or those that it makes."""
    limits = throttle.task_limits(request.task)
    calls = [] if limits is None else [LimitedCall(limits, request.args, request.kwargs)]
    arguments_of = _MAPPING_TASKS.get(request.task.name)
    if arguments_of is None:
        return calls
    given = {**dict(zip(("task", "it"), request.args, strict=False)), **request.kwargs}
    try:
        task = request.app.tasks[given["task"]["task"]]
        elements = [arguments_of(element) for element in given["it"]]
    except (LookupError, TypeError):  # it fails in its body, as in plain Celery
        return calls
    limits = throttle.task_limits(task)
    return calls if limits is None else [*calls, *(LimitedCall(limits, e, {}) for e in elements)]


def require(throttle: AppLimits, calls: Sequence[LimitedCall]) -> Requirement | None:
    """Return what calls require together; None if no limit applies. Thread-safe.

    Raises:
        ThrottleError: a function, a key or a cost is wrong.
    """
    found = [call.limits.requirement(call.args, call.kwargs) for call in calls]
    if len(found) == 1:
        return found[0]
    requirement = _merged(throttle, [item for each in found for item in items_of(each)])
    if requirement is not None:
        check_ref_count(requirement.refs, MAX_LIMITS_PER_TASK)
    return requirement


def set_computed(
    throttle: AppLimits,
    request: Any,
    calls: Sequence[LimitedCall],
    requirement: Requirement | None,
) -> TaskLimits | None:
    """Set what was computed for a request, with which it goes from now on; return its limits."""
    request.throttle_state.computed = tuple(items_of(requirement))
    return _join(throttle, request, calls, requirement)


def _join(
    throttle: AppLimits,
    request: Any,
    calls: Sequence[LimitedCall],
    requirement: Requirement | None,
) -> TaskLimits | None:
    """Join what a task requires and what its last run requested; None if there are no limits."""
    state: TaskState = request.throttle_state
    if state.requested:
        # A limit and key that the task declares counts as declared only: no run begins with more.
        own = () if requirement is None else requirement.refs
        items = [*items_of(requirement), *(each for each in state.requested if each[:2] not in own)]
        requirement = _merged(throttle, items)
    joined = None
    if requirement is not None:
        limits = calls[-1].limits if calls else TaskLimits.none()
        settles = limits.settles or state.settles
        joined = limits.of_call(requirement, throttle.limits, settles=settles)
    state.joined = (joined,)
    return joined


def _merged(throttle: AppLimits, items: Iterable[Item]) -> Requirement | None:
    """Return the requirement of items, each limit and key once; None if there are none."""
    costs: dict[LimitRef, int] = {}
    for name, key, cost in items:
        ref = LimitRef(name, key)
        # A task holds one slot of a limit, however often it requests it.
        if ref in costs and find_slot_indexes([name], throttle.limits):
            continue
        costs[ref] = costs.get(ref, 0) + cost
    return Requirement(tuple(costs), tuple(costs.values())) if costs else None
