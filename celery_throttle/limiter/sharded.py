"""The core of a limiter that may have shards: calls that are not about one limit and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.parts import Parts, ShardedPlans, on
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME, Shard
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.stored import read_stored
from celery_throttle.observe.status.tasks import WaitingPage, read_waiting_tasks
from celery_throttle.operations.plan import Plan

T = TypeVar("T")

#: Shards that are read at the same time: some may be on a server that replies to nothing.
_MAX_THREADS = 16


class ShardedCore(LimiterCore):
    """The core of a limiter, or of its home shard and the parts of the other shards."""

    @property
    def parts(self) -> Parts | None:
        """The part of each shard; None without shards.

        :meta private:
        """
        return self.plans.parts if isinstance(self.plans, ShardedPlans) else None

    def check_together(self, refs: Iterable[LimitRef]) -> None:
        """Raise ConfigurationError if limits that one call needs are in two shards.

        :meta private:
        """
        if self.parts is not None:
            self.parts.shard_map.shard_of_all(refs)

    def observed_parts(self) -> Sequence[LimiterCore]:
        """Return the core of each shard.

        :meta private:
        """
        return [self] if self.parts is None else self.parts.all()

    def read(
        self, reader: Callable[[Observer], Plan[T]], ref: LimitRef | None = None
    ) -> Reading[T]:
        """Run a plan that reads the status in each shard, or in those that have a limit.

        :meta private:
        """
        if self.parts is None:
            return super().read(reader, ref)
        shards = self.parts.shards if ref is None else self._shards_of(ref)
        parts = [self.parts[shard] for shard in shards]
        with ThreadPoolExecutor(min(_MAX_THREADS, len(shards))) as pool:
            read = pool.map(partial(self._read_part, reader), parts)
            found = dict(zip(map(str, shards), read, strict=True))
        lost = {name: one for name, one in found.items() if isinstance(one, StoreError)}
        values = {name: one for name, one in found.items() if not isinstance(one, StoreError)}
        return Reading(values, lost)

    def _read_part(
        self, reader: Callable[[Observer], Plan[T]], part: LimiterCore
    ) -> T | StoreError:
        try:
            return self.run_plan(on(part, reader(part.observer)))
        except StoreError as error:  # of this shard alone
            return error

    def _shards_of(self, ref: LimitRef) -> Sequence[Shard]:
        parts: Any = self.parts
        with suppress(StoreError):  # without the home shard, it is where it is known to be
            self.run_plan(parts.locate(ref.name))
        return parts.shard_map.shards_of(ref)  # type: ignore[no-any-return]  # of the parts


def read_waiting(
    limiter: LimiterCore, ref: LimitRef, first: int, most: int
) -> Reading[WaitingPage]:
    """Read the tasks that wait at a limit, the shards one after the other.

    ``first``: how many to pass over.
    """
    spans, passed, left = dict[str, tuple[int, int]](), 0, most
    stored = limiter.read(lambda observer: read_stored(observer, [ref]), ref)
    for shard, (status,) in stored.values.items():
        skip = min(max(0, first - passed), status.waiting)
        take = min(left, status.waiting - skip)
        spans[shard] = skip, take
        passed, left = passed + status.waiting, left - take

    def read_part(observer: Observer) -> Plan[WaitingPage]:
        span = spans.get(observer.shard, (0, 0))
        return read_waiting_tasks(observer, ref, limiter.task_name, *span)

    reading = limiter.read(read_part, ref)
    page = reading.merged()
    end = first + len(page.tasks)
    has_more = bool(page.tasks) and end < page.waiting
    return Reading({HOME: replace(page, next=end if has_more else None)}, reading.lost)
