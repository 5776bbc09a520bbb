"""One value of what was read of several shards, each with some of the limits, or of their keys."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, Generic, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.observer import FieldMerge, find_highest, join_items, merge_fields
from celery_throttle.observe.report import Recorded
from celery_throttle.observe.status.definitions import Definitions
from celery_throttle.observe.status.fan_outs import Progress, merge_progress
from celery_throttle.observe.status.fleet import Fleet, WorkerStatus
from celery_throttle.observe.status.limits import MAX_FAN_OUTS, MAX_KEYS, MAX_SLOTS
from celery_throttle.observe.status.records import add_periods
from celery_throttle.observe.status.stored import KeyPage, place_of
from celery_throttle.observe.status.tasks import TaskStatus, WaitingPage
from celery_throttle.observe.totals import Totals, add_totals
from celery_throttle.observe.values import (
    Change,
    LimitDetails,
    LimitStatus,
    Period,
    Preview,
    QueueStatus,
    RulesStatus,
    Status,
    Stranded,
)

S = TypeVar("S", bound=LimitStatus)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What was read of the shards."""

    values: Mapping[str, T]  #: what was read, by the name of the shard
    #: Why the other shards could not be read, by their names.
    lost: Mapping[str, StoreError] = field(default_factory=dict)

    def merged(self) -> T:
        """Return one value of those shards that could be read.

        Raises:
            StoreError: that is none.
        """
        if not self.values:
            return self.complete()
        value = merge([*self.values.values()])
        if self.lost and isinstance(value, (Status, LimitDetails)):
            return replace(value, lost_shards=(*self.lost,))
        return value

    def complete(self) -> T:
        """Return one value of all shards.

        Raises:
            StoreError: one of them could not be read.
        """
        for name, error in self.lost.items():
            raise type(error)(f"shard {name!r}: {error}") from error
        return merge([*self.values.values()])


def merge(parts: Sequence[T]) -> T:
    """Return one value of those that one reader has returned for several shards."""
    known: Sequence[Any] = [part for part in parts if part is not None] or parts[:1]
    first, *others = known
    if not others:
        return first  # type: ignore[no-any-return]  # one of the parts
    for kind, how in _MERGES.items():
        if isinstance(first, kind):
            merged: T = merge_fields(known, **how) if isinstance(how, Mapping) else how(known)
            return merged
    raise TypeError(f"cannot merge {type(first)}")


def merge_pages(pages: Sequence[Status], most: int = sys.maxsize) -> Status:
    """Return one page of the pages of several shards, each with ``most`` limits at most.

    The first page is that of the home shard, if it can be reached.
    """
    limits = _merge_list([one for page in pages for one in page.limits])
    # A page ends where the first of those ends that are continued.
    ends = [page.next for page in pages if page.next is not None]
    shown = [one for one in limits[:most] if all(one.name <= end for end in ends)]
    names = [one.name for one in shown]
    has_more = len(limits) > most or bool(ends)
    stranded = _add_stranded(one for page in pages for one in page.stranded)
    return replace(
        merge_fields(pages, workers=max, ungated=join_items, rules=merge),
        limits=tuple(shown),
        next=names[-1] if has_more and names else None,
        stranded=tuple(one for one in stranded if one.why != "limit" or one.what in names),
    )


def _add_stranded(found: Iterable[Stranded]) -> list[Stranded]:
    """Return stranded tasks of several shards, those with the same cause together."""
    merged: dict[Stranded, int | None] = {}
    for one in found:
        cause = replace(one, tasks=None)
        known = merged.get(cause)
        merged[cause] = one.tasks if known is None else known + (one.tasks or 0)
    return [replace(cause, tasks=tasks) for cause, tasks in merged.items()]


def _merge_forecasts(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of tasks from those of parts of them: the latest one."""

    def end(forecast: Forecast) -> tuple[int, float]:
        unknown = 0 if forecast.waiting else -1
        return unknown, inf if forecast.seconds is None else forecast.seconds

    latest_first = sorted(forecasts, key=end, reverse=True)
    return merge_fields(latest_first, waiting=sum, unknown=sum)


def _merge_workers(parts: Sequence[WorkerStatus]) -> WorkerStatus:
    """Return the status of a worker. It may be lost in some shards only."""
    merged = merge_fields(parts, live=any, lost=find_highest, claims=sum, lease=max)
    return merged._replace(lost=None) if merged.live else merged


def _merge_list(items: Sequence[Any]) -> list[Any]:
    """Return different items in order; those with the same name are merged."""
    if items and isinstance(items[0], Change):
        return sorted(items, key=lambda change: place_of(change.id), reverse=True)
    by_name: dict[Any, list[Any]] = {}
    for item in items:
        by_name.setdefault(getattr(item, "name", item), []).append(item)
    return sorted(map(merge, by_name.values()), key=_order)


def _order(item: Any) -> Any:
    if isinstance(item, (Progress, QueueStatus)):
        return -item.waiting, item.name
    return getattr(item, "name", item)


def _merge_tuples(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the periods of all shards; or limits, which are the same in all shards."""
    if parts[0] and isinstance(parts[0][0], Period):
        return tuple(add_periods(some) for some in zip(*parts, strict=True))
    return parts[0]


def _most_first(pair: tuple[str, float]) -> tuple[float, str]:
    key, number = pair
    return -number, key


def _end_of_pause(pair: tuple[str, Any]) -> tuple[float, str]:
    key, end = pair
    return inf if end is None else end.timestamp(), key


#: How the parts of a limit are merged, each with some of its keys.
_LIMIT: Mapping[str, FieldMerge] = {
    **dict.fromkeys(("waiting", "waiting_keys", "runnable", "paused_keys", "own_keys"), sum),
    "has_keys": any,
    "oldest": find_highest,
    "forecast": merge,
    "totals": add_totals,
    "last_api_refusal": lambda found: max(filter(None, found), key=attrgetter("at"), default=None),
}


def merge_limits(parts: Sequence[S], rules: Mapping[str, FieldMerge] = _LIMIT) -> S:
    """Return the status of a limit from its parts; the rest is that of a part that defines it."""
    return merge_fields(sorted(parts, key=lambda part: not part.defined), **rules)


_DETAILS: Mapping[str, FieldMerge] = {
    **_LIMIT,
    "recent": merge,
    "queues": lambda found: tuple(_merge_list([*chain(*found)])),
    "top_keys": lambda found: tuple(sorted(join_items(found), key=_most_first)[:MAX_KEYS]),
    "top_paused_keys": lambda found: tuple(
        sorted(join_items(found), key=_end_of_pause, reverse=True)[:MAX_KEYS]
    ),
    "slots_used": sum,
    "slots": lambda found: join_items(found)[:MAX_SLOTS],
    "fan_outs": lambda found: tuple(sorted(join_items(found))[:MAX_FAN_OUTS]),
}

#: How values of each kind are merged, the more special kind first: by a function, or by fields.
_MERGES: Mapping[type, Callable[[Sequence[Any]], Any] | Mapping[str, FieldMerge]] = {
    bool: any,
    int: sum,
    str: lambda parts: parts[0],  # the same item of several lists
    LimitDetails: lambda parts: merge_limits(parts, _DETAILS),
    LimitStatus: merge_limits,
    Status: merge_pages,
    Forecast: _merge_forecasts,
    Totals: add_totals,
    Preview: {"waiting": sum, "before": merge, "after": merge},
    Fleet: {
        "workers": max,
        "quarantined": sum,
        "consumed": merge,
        "outage_seconds": sum,
        "ungated": join_items,
    },
    WorkerStatus: _merge_workers,
    QueueStatus: {"waiting": sum, "is_exact": all, "consumed": any},
    Progress: merge_progress,
    KeyPage: {"total": sum, "keys": lambda found: sorted(chain(*found), key=_most_first)},
    Recorded: {
        "status": merge,
        "records": lambda found: [*chain(*found)],
        "keys": merge,
    },
    WaitingPage: {"waiting": sum, "tasks": join_items},
    TaskStatus: lambda parts: next((one for one in parts if one.location != "unknown"), parts[0]),
    # Each shard knows the whole file, and the reports of all workers.
    RulesStatus: {"others": join_items},
    Rules: lambda parts: next((one for one in parts if one != Rules()), parts[0]),
    Definitions: dict.fromkeys(("limits", "weights"), lambda found: {**ChainMap(*found)}),
    tuple: _merge_tuples,
    dict: lambda parts: {
        name: merge([part[name] for part in parts if name in part])
        for name in dict.fromkeys(name for part in parts for name in part)
    },
    list: lambda parts: _merge_list([one for part in parts for one in part]),
}
