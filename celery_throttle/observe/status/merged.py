"""One status of several shards, each with a part of the limits, or of the keys of a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status.limits import MAX_FAN_OUTS, MAX_KEYS, MAX_SLOTS
from celery_throttle.observe.totals import add_totals
from celery_throttle.observe.values import LimitDetails, LimitStatus, QueueStatus, Status

S = TypeVar("S", bound=LimitStatus)

#: The numbers of a limit that are added.
_SUMS = ("waiting", "waiting_keys", "runnable", "paused_keys", "own_keys")


def merge_pages(pages: Sequence[Status], most: int, lost: Sequence[str]) -> Status:
    """Return one page of the pages of several shards, each with ``most`` limits at most.

    The first page is that of the home shard, if it can be reached. ``lost``: the shards that
    cannot be reached.
    """
    by_name: dict[str, list[LimitStatus]] = defaultdict(list)
    for page in pages:
        for status in page.limits:
            by_name[status.name].append(status)
    names = sorted(by_name)
    has_more = len(names) > most or any(page.next is not None for page in pages)
    # A page ends where the first of those ends that are continued.
    ends = [page.next for page in pages if page.next is not None]
    names = [name for name in names[:most] if all(name <= end for end in ends)]
    stranded = dict.fromkeys(one for page in pages for one in page.stranded)
    ungated = dict.fromkeys(one for page in pages for one in page.ungated)
    return replace(
        pages[0],
        limits=tuple(merge_limits(by_name[name]) for name in names),
        next=names[-1] if has_more and names else None,
        workers=max(page.workers for page in pages),
        stranded=tuple(one for one in stranded if one.why != "limit" or one.what in names),
        ungated=tuple(ungated),
        lost_shards=tuple(lost),
    )


def merge_limits(parts: Sequence[S]) -> S:
    """Return the status of a limit from its parts, each of some of its keys."""
    first = next((part for part in parts if part.defined), parts[0])
    if len(parts) == 1:
        return first
    waits = [part.oldest for part in parts if part.oldest is not None]
    forecasts = [part.forecast for part in parts if part.forecast is not None]
    sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
    return replace(
        first,
        has_keys=any(part.has_keys for part in parts),
        oldest=max(waits, default=None),
        forecast=merge_forecasts(forecasts) if forecasts else None,
        totals=add_totals([part.totals for part in parts]),
        **sums,
    )


def merge_details(parts: Sequence[LimitDetails]) -> LimitDetails:
    """Return the details of a limit from its parts, each of some of its keys.

    The recent periods are left out: those of the parts do not begin at the same times.
    """
    merged = merge_limits(parts)
    if len(parts) == 1:
        return merged
    keys = sorted(_joined(parts, "top_keys"), key=lambda pair: (-pair[1], pair[0]))
    paused = sorted(_joined(parts, "top_paused_keys"), key=_end_of_pause, reverse=True)
    return replace(
        merged,
        recent=(),
        queues=_merge_queues(_joined(parts, "queues")),
        top_keys=tuple(keys[:MAX_KEYS]),
        top_paused_keys=tuple(paused[:MAX_KEYS]),
        slots_used=sum(part.slots_used for part in parts),
        slots=tuple(_joined(parts, "slots"))[:MAX_SLOTS],
        fan_outs=tuple(sorted({*_joined(parts, "fan_outs")}))[:MAX_FAN_OUTS],
    )


def merge_forecasts(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of tasks from those of parts of them: the latest one."""

    def end(forecast: Forecast) -> tuple[int, float]:
        unknown = 0 if forecast.waiting else -1
        return unknown, inf if forecast.seconds is None else forecast.seconds

    return replace(
        max(forecasts, key=end),
        waiting=sum(one.waiting for one in forecasts),
        unknown=sum(one.unknown for one in forecasts),
    )


def _joined(parts: Sequence[LimitDetails], name: str) -> list[Any]:
    return [one for part in parts for one in getattr(part, name)]


def _end_of_pause(pair: tuple[str, Any]) -> tuple[float, str]:
    key, end = pair
    return inf if end is None else end.timestamp(), key


def _merge_queues(found: Sequence[QueueStatus]) -> tuple[QueueStatus, ...]:
    merged: dict[str, QueueStatus] = {}
    for queue in found:
        known = merged.get(queue.name)
        merged[queue.name] = (
            queue
            if known is None
            else replace(
                known,
                waiting=known.waiting + queue.waiting,
                is_exact=known.is_exact and queue.is_exact,
                consumed=known.consumed or queue.consumed,
            )
        )
    return tuple(sorted(merged.values(), key=lambda queue: (-queue.waiting, queue.name)))
