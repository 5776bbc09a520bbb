"""The core of a limiter that may have shards: calls that are not about one limit and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from celery_throttle.errors import ConfigurationError, StoreError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.moves import LimitMove, MovePreview
from celery_throttle.limiter.parts import Parts, ShardedPlans, on
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME, Shard
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.stored import read_stored
from celery_throttle.observe.status.tasks import WaitingPage, read_waiting_tasks
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan

S = TypeVar("S")
T = TypeVar("T")

#: Shards that are read at the same time: some may be on a server that replies to nothing.
_MAX_THREADS = 16


def at_once(function: Callable[[S], T], shards: Sequence[S]) -> list[T]:
    """Call a function for each of several shards at the same time; return what it returns."""
    if len(shards) == 1:
        return [function(shards[0])]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(shards))) as pool:
        return [*pool.map(function, shards)]


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

    def run_in_shard(self, refs: Iterable[LimitRef], make: Callable[[Any], Plan[T]]) -> T:
        """Run a plan in the shard of some limits; ``make`` makes it from the plans of a shard.

        Raises:
            ConfigurationError: the limits are in two shards, or in one that this process lacks.

        :meta private:
        """
        plans = self.plans
        if isinstance(plans, ShardedPlans):
            return self.run_plan(plans.in_one(refs, make))
        return self.run_plan(make(plans))

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
        read = at_once(partial(self._read_part, reader), parts)
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

    def move_to_shard(
        self,
        limits: str | Iterable[str],
        shard: str,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Move limits from the shards in which they are to another one, with all their keys.

        Definitions, weights and pauses move as well. Limits with a rate begin used up there: no
        unit is granted twice, and unused bursts are lost. Slots are not taken while the move waits
        until all slots in use are released. Waiting tasks stay in their lines until workers let
        them wait in the other shard, after tasks that have come there before. If the call is
        interrupted, repeat it: the same call goes on.

        First give all processes the same ``throttle_shards``, which has the shard. The call does
        not change that setting: see :doc:`/how-to/shards`.

        Args:
            limits: The name of the limit, or the names of several. Limits that tasks need together
                move in one call.
            shard: The name of the entry in ``throttle_shards``, or ``"home"``.
            reason: The reason, up to 500 characters; recorded in the log of changes.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Raises:
            ConfigurationError: The settings have no such shard, or it divides its limits by key; a
                live worker does not have it; a task needs one of the limits together with another
                one, which does not move; tasks of a fan-out wait for one. Nothing was changed.
            UnknownLimitError: A limit is not defined.
            StoreError: A server could not be reached. Repeat the call when it is back.
        """
        self.run_plan(self._move(limits, shard).run(Author.of(by, reason)))

    async def amove_to_shard(
        self,
        limits: str | Iterable[str],
        shard: str,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """The asyncio twin of :meth:`move_to_shard`."""
        await self.arun_plan(self._move(limits, shard).run(Author.of(by, reason)))

    def preview_move(self, limits: str | Iterable[str], shard: str) -> list[MovePreview]:
        """Return what :meth:`move_to_shard` would cost now, for each limit.

        Raises:
            ConfigurationError: As for :meth:`move_to_shard`.
            UnknownLimitError: A limit is not defined.
            StoreError: A server could not be reached.
        """
        return self.run_plan(self._move(limits, shard).preview())

    def _move(self, limits: str | Iterable[str], shard: str) -> LimitMove:
        if self.parts is None or not self.parts.home.observer.has_server:
            raise ConfigurationError(
                "limits move between the shards of throttle_shards on servers, of which there are "
                "none here; allowed: several shards, not in memory"
            )
        names = [limits] if isinstance(limits, str) else list(dict.fromkeys(limits))
        return LimitMove(self.parts, names, shard, self.limits_together())

    def limits_together(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield what needs several limits in one call: what it is called, and their names.

        :meta private:
        """
        yield from ()


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
