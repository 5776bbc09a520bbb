"""Limits that a task met in its body: it waits for them too, and has their units in its next run.

They go with its message as a header, which is taken out before the task sees it: in a line, and
back to the broker where there are no lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import LimitValueError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import check_name
from celery_throttle.limits.requirement import Need, slot_places
from celery_throttle.tasks.context import GIVEN, RESENT, Item, items_of
from celery_throttle.tasks.task import TaskLimits

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

Items = Sequence[Item]

#: Limits and keys that a task may meet, one after the other.
MOST = 20

_HEADER, _RESENT = "throttle_met", "throttle_resent"


def of(request: Any) -> Items:
    """What a task met in its runs before."""
    known: Items | None = request.__dict__.get(_HEADER)
    if known is None:
        header = request.request_dict.pop(_HEADER, None)
        known = request.throttle_met = () if header is None else _read(header)
    return known


def _read(header: Any) -> Items:
    """What a header says; nothing, if it is not one of ours."""
    try:
        items = [(check_name(name), key, int(cost)) for name, key, cost in header]
    except (TypeError, ValueError):
        return ()
    sound = all(isinstance(key, (str, type(None))) and cost > 0 for _, key, cost in items)
    return tuple(items) if sound else ()


def resent(request: Any) -> dict[str, int]:
    """How often its runs before were refused by an API, by the limits of the request to that."""
    known: dict[str, int] | None = request.__dict__.get(_RESENT)
    if known is None:
        header = request.request_dict.pop(_RESENT, None)
        known = request.throttle_resent = _read_counts(header) if header else {}
    return known


def _read_counts(header: Any) -> dict[str, int]:
    """What a header says; nothing, if it is not one of ours."""
    try:
        return {str(limits): int(times) for limits, times in header.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def headers(request: Any) -> dict[str, Any]:
    """The headers that go with its message."""
    both = {_HEADER: of(request), _RESENT: resent(request)}
    return {name: value for name, value in both.items() if value}


def add(throttle: Throttle, request: Any, items: Iterable[Item]) -> None:
    """It has met more. What no run can be given from its start is not remembered.

    Raises:
        LimitValueError: it has met too many.
    """
    counts, more = resent(request), []
    for name, key, cost in items:
        if name == RESENT:
            counts[str(key)] = counts.get(str(key), 0) + cost
        else:
            more.append((name, key, cost))
    request.throttle_met = (*of(request), *more)
    request.__dict__.pop("throttle_joined", None)
    own = throttle.task_limits(request.task)
    _, given = _joined(throttle, request)
    met = request.throttle_met = tuple(given[len(own.need_of(request).refs) if own else 0 :])
    if len(met) > MOST:
        raise LimitValueError(
            f"task {request.task.name!r} has met {len(met)} limits in its body, {met[-1][0]!r} the "
            f"last; allowed: {MOST}, or let its clients wait in place (max_wait)"
        )


def limits_of(throttle: Throttle, request: Any) -> TaskLimits | None:
    """What a request needs: the limits of its task, and those that were met."""
    return _joined(throttle, request)[0] if of(request) else throttle.task_limits(request.task)


def give(request: Any) -> None:
    """Tell the run that begins what it has; it need not be asked for in its body."""
    given = _joined(request.app.throttle, request)[1] if of(request) else ()
    counts = [(RESENT, limits, times) for limits, times in resent(request).items()]
    request.request_dict[GIVEN] = (*given, *counts) if counts else given


def _joined(throttle: Throttle, request: Any) -> tuple[TaskLimits, Sequence[Item]]:
    """The limits of a task and those that it met, found once; and what a run is given of them.

    What goes beyond a burst no run can have from its start; it waits for that in place.
    """
    known: tuple[TaskLimits, Sequence[Item]] | None = request.__dict__.get("throttle_joined")
    if known is not None:
        return known
    own = throttle.task_limits(request.task)
    costs: dict[LimitRef, int] = {}
    given: list[Item] = []
    items = [] if own is None else items_of(own.need_of(request))
    for name, key, cost in (*items, *of(request)):
        ref = LimitRef(name, key)
        limits = throttle.limits.get(name, ())
        total = costs.get(ref, 0) + cost
        # A slot is one, however often it is met.
        again = ref in costs and slot_places([name], throttle.limits)
        if ref in costs and (again or any(total > limit.burst * MILLION for limit in limits)):
            continue
        costs[ref] = total
        given.append((name, key, cost))
    refs = tuple(costs)
    slots = slot_places((ref.name for ref in refs), throttle.limits)
    base = TaskLimits.none() if own is None else own
    need = Need(refs, tuple(costs.values()))
    request.throttle_joined = replace(base, fixed=need, slots=slots), given
    return request.throttle_joined  # type: ignore[no-any-return]  # a request takes attributes
