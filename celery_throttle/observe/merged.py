"""One value of what was read of several shards, each with some of the limits, or of their keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.report import Recorded
from celery_throttle.observe.status.definitions import Definitions
from celery_throttle.observe.status.fan_outs import Progress
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
    for kind, merge_kind in _MERGES.items():
        if isinstance(first, kind):
            return merge_kind(known)  # type: ignore[no-any-return]  # of the same kind
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
    stranded = _add_stranded(_joined(pages, "stranded", is_unique=False))
    return replace(
        pages[0],
        limits=tuple(shown),
        next=names[-1] if has_more and names else None,
        workers=max(page.workers for page in pages),
        stranded=tuple(one for one in stranded if one.why != "limit" or one.what in names),
        ungated=tuple(_joined(pages, "ungated")),
        rules=merge([page.rules for page in pages]),
    )


def _add_stranded(found: Sequence[Stranded]) -> list[Stranded]:
    """Return stranded tasks of several shards, those with the same cause together."""
    merged: dict[Stranded, int | None] = {}
    for one in found:
        cause = replace(one, tasks=None)
        known = merged.get(cause)
        merged[cause] = one.tasks if known is None else known + (one.tasks or 0)
    return [replace(cause, tasks=tasks) for cause, tasks in merged.items()]


def merge_limits(parts: Sequence[S]) -> S:
    """Return the status of a limit from its parts, each of some of its keys."""
    first = next((part for part in parts if part.defined), parts[0])
    if len(parts) == 1:
        return first
    counts = ("waiting", "waiting_keys", "runnable", "paused_keys", "own_keys")
    sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
    refusals = [part.last_api_refusal for part in parts if part.last_api_refusal]
    return replace(
        first,
        has_keys=any(part.has_keys for part in parts),
        oldest=max((part.oldest for part in parts if part.oldest is not None), default=None),
        forecast=merge([part.forecast for part in parts]),
        totals=add_totals([part.totals for part in parts]),
        last_api_refusal=max(refusals, key=lambda one: one.at, default=None),
        **sums,
    )


def _merge_details(parts: Sequence[LimitDetails]) -> LimitDetails:
    """Return the details of a limit from its parts, each of some of its keys."""
    keys = sorted(_joined(parts, "top_keys"), key=lambda pair: (-pair[1], pair[0]))
    paused = sorted(_joined(parts, "top_paused_keys"), key=_end_of_pause, reverse=True)
    return replace(
        merge_limits(parts),
        recent=merge([part.recent for part in parts]),
        queues=tuple(_merge_queues(_joined(parts, "queues", is_unique=False))),
        top_keys=tuple(keys[:MAX_KEYS]),
        top_paused_keys=tuple(paused[:MAX_KEYS]),
        slots_used=sum(part.slots_used for part in parts),
        slots=tuple(_joined(parts, "slots"))[:MAX_SLOTS],
        fan_outs=tuple(sorted(_joined(parts, "fan_outs")))[:MAX_FAN_OUTS],
    )


def _merge_forecasts(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast of tasks from those of parts of them: the latest one."""

    def end(forecast: Forecast) -> tuple[int, float]:
        unknown = 0 if forecast.waiting else -1
        return unknown, inf if forecast.seconds is None else forecast.seconds

    return replace(
        max(forecasts, key=end),
        waiting=sum(one.waiting for one in forecasts),
        unknown=sum(one.unknown for one in forecasts),
    )


def _merge_fleets(parts: Sequence[Fleet]) -> Fleet:
    consumed: dict[str, bool] = {}
    for part in parts:
        for queue, is_live in part.consumed.items():
            consumed[queue] = consumed.get(queue, False) or is_live
    return parts[0]._replace(
        workers=max(part.workers for part in parts),
        quarantined=sum(part.quarantined for part in parts),
        consumed=consumed,
        outage_seconds=sum(part.outage_seconds for part in parts),
        ungated=tuple(_joined(parts, "ungated")),
    )


def _merge_workers(parts: Sequence[WorkerStatus]) -> WorkerStatus:
    """Return the status of a worker. It may be lost in some shards only."""
    last_lost = max((part.lost for part in parts if part.lost), default=None)
    is_live = any(part.live for part in parts)
    return parts[0]._replace(
        live=is_live,
        lost=None if is_live else last_lost,
        claims=sum(part.claims for part in parts),
        lease=max(part.lease for part in parts),
    )


def _merge_key_pages(parts: Sequence[KeyPage]) -> KeyPage:
    keys = sorted((one for part in parts for one in part.keys), key=lambda one: (-one[1], one[0]))
    return KeyPage(sum(part.total for part in parts), keys)


def _merge_list(items: Sequence[Any]) -> list[Any]:
    """Return different items in order; those with the same name are merged."""
    if items and isinstance(items[0], Change):
        return sorted(items, key=lambda change: place_of(change.id), reverse=True)
    by_name: dict[Any, list[Any]] = {}
    for item in items:
        by_name.setdefault(getattr(item, "name", item), []).append(item)
    return sorted(map(merge, by_name.values()), key=_order)


def _merge_tuples(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the periods of all shards; or limits, which are the same in all shards."""
    if parts[0] and isinstance(parts[0][0], Period):
        return tuple(add_periods(some) for some in zip(*parts, strict=True))
    return parts[0]


def _order(item: Any) -> Any:
    if isinstance(item, Progress):
        return -item.waiting, item.name
    return getattr(item, "name", item)


def _merge_queues(found: Sequence[QueueStatus]) -> list[QueueStatus]:
    merged: dict[str, QueueStatus] = {}
    for queue in found:
        known = merged.get(queue.name, replace(queue, waiting=0))
        merged[queue.name] = replace(
            known,
            waiting=known.waiting + queue.waiting,
            is_exact=known.is_exact and queue.is_exact,
            consumed=known.consumed or queue.consumed,
        )
    return sorted(merged.values(), key=lambda queue: (-queue.waiting, queue.name))


def _joined(parts: Sequence[Any], name: str, *, is_unique: bool = True) -> list[Any]:
    every = [one for part in parts for one in getattr(part, name)]
    return [*dict.fromkeys(every)] if is_unique else every


def _end_of_pause(pair: tuple[str, Any]) -> tuple[float, str]:
    key, end = pair
    return inf if end is None else end.timestamp(), key


#: How values of each kind are merged, the more special kind first.
_MERGES: Mapping[type, Callable[[Sequence[Any]], Any]] = {
    bool: any,
    str: lambda parts: parts[0],  # the same item of several lists
    LimitDetails: _merge_details,
    LimitStatus: merge_limits,
    Status: merge_pages,
    Forecast: _merge_forecasts,
    Totals: add_totals,
    Preview: lambda parts: Preview(
        sum(part.waiting for part in parts),
        merge([part.before for part in parts]),
        merge([part.after for part in parts]),
    ),
    Fleet: _merge_fleets,
    WorkerStatus: _merge_workers,
    Progress: Progress.merge,
    KeyPage: _merge_key_pages,
    Recorded: lambda parts: Recorded(
        merge_limits([part.status for part in parts]),
        parts[0].seconds,
        [records for part in parts for records in part.records],
        merge([part.keys for part in parts]),
    ),
    WaitingPage: lambda parts: WaitingPage(
        sum(part.waiting for part in parts), tuple(_joined(parts, "tasks")), None
    ),
    TaskStatus: lambda parts: next((one for one in parts if one.location != "unknown"), parts[0]),
    # Each shard knows the whole file, and the reports of all workers.
    RulesStatus: lambda parts: replace(parts[0], others=tuple(_joined(parts, "others"))),
    Rules: lambda parts: next((one for one in parts if one != Rules()), parts[0]),
    Definitions: lambda parts: Definitions(
        {ref: own for part in reversed(parts) for ref, own in part.limits.items()},
        {ref: own for part in reversed(parts) for ref, own in part.weights.items()},
    ),
    tuple: _merge_tuples,
    dict: lambda parts: {
        name: merge([part[name] for part in parts if name in part])
        for name in dict.fromkeys(name for part in parts for name in part)
    },
    list: lambda parts: _merge_list([one for part in parts for one in part]),
}
