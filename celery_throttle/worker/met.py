"""Limits that a task met in its body: it waits for them too, and has their units in its next run.

They go with its message as a header, which is taken out before the task sees it: in a line, and
back to the broker where there are no lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_throttle.inside import Delivered, Item, items_of
from celery_throttle.limits import check_name
from celery_throttle.needs import Need, has_slots
from celery_throttle.scope import LimitRef
from celery_throttle.task import TaskLimits

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

Items = Sequence[Item]

#: Limits and keys that a task is remembered to have met; of more, the last.
MOST = 20

_HEADER = "throttle_met"


def of(request: Any) -> Items:
    """What a task met in its runs before."""
    known: Items | None = request.__dict__.get(_HEADER)
    if known is None:
        known = request.throttle_met = _read(request.request_dict.pop(_HEADER, ()))
    return known


def _read(header: Any) -> Items:
    """What a header says; nothing, if it is not one of ours."""
    try:
        items = [(check_name(name), key, int(cost)) for name, key, cost in header]
    except (TypeError, ValueError):
        return ()
    sound = all(isinstance(key, (str, type(None))) and cost > 0 for _, key, cost in items)
    return tuple(items) if sound else ()


def headers(request: Any) -> dict[str, Any]:
    """The headers that go with its message."""
    met = of(request)
    return {_HEADER: met} if met else {}


def add(request: Any, items: Iterable[Item]) -> None:
    """It has met more."""
    request.throttle_met = (*of(request), *((name, key, cost) for name, key, cost in items))[-MOST:]
    request.__dict__.pop("throttle_limits", None)


def limits_of(throttle: Throttle, request: Any) -> TaskLimits | None:
    """What a request needs: the limits of its task, and those that were met."""
    own = throttle.task_limits(request.task)
    met = of(request)
    if not met:
        return own
    known: TaskLimits | None = request.__dict__.get("throttle_limits")
    if known is None:
        known = request.throttle_limits = _joined(throttle, own, request, met)
    return known


def _joined(throttle: Throttle, own: TaskLimits | None, request: Any, met: Items) -> TaskLimits:
    base = TaskLimits.none() if own is None else own
    costs: dict[LimitRef, int] = {}
    if own is not None:
        need = own.need_of(request)
        costs.update(zip(need.refs, need.costs, strict=True))
    for name, key, cost in met:
        ref = LimitRef(name, key)
        costs[ref] = costs.get(ref, 0) + cost
    refs = tuple(costs)
    slots = tuple(
        place
        for place, ref in enumerate(refs)
        if any(map(has_slots, throttle.limits.get(ref.name, ())))
    )
    return replace(base, fixed=Need(refs, tuple(costs.values())), slots=slots)


def give(request: Any) -> None:
    """Tell the run that begins what it has; it need not be asked for in its body."""
    throttle = request.app.throttle
    own = throttle.task_limits(request.task)
    given = [] if own is None else items_of(own.need_of(request))
    delivered = Delivered(request.delivery_info)
    delivered.given = [*given, *of(request)]
    request._delivery_info = request.request_dict["delivery_info"] = delivered  # noqa: SLF001  # all that goes to the run but the message itself
