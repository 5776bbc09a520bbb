"""The core of a limiter that may have shards: calls that are not about one limit and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from celery_throttle.errors import ConfigurationError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.moves import LimitMove, MovePreview
from celery_throttle.limiter.parts import Parts, ShardedPlans, on
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan

T = TypeVar("T")


class ShardedCore(LimiterCore):
    """The core of a limiter, or of its home shard and the parts of the other shards."""

    @property
    def parts(self) -> Parts | None:
        """The part of each shard; None without shards.

        :meta private:
        """
        return self.plans.parts if isinstance(self.plans, ShardedPlans) else None

    @property
    def observer(self) -> Observer:
        """What the readers of the status use, of the only shard.

        Raises:
            ConfigurationError: there are several shards.

        :meta private:
        """
        if self.parts is not None:
            raise ConfigurationError(
                "pages, metrics and previews show the limits of one shard, and the limiter has "
                "several; allowed: limiter.status(), and limiter['name'].status()"
            )
        return super().observer

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

    def read_limit(
        self,
        ref: LimitRef,
        reader: Callable[[Observer], Plan[T]],
        merge: Callable[[Sequence[T]], T] | None = None,
    ) -> T:
        """Run a plan that reads the status of a limit, in its shard, or in all that have it.

        Raises:
            ConfigurationError: the limit has several shards, and there is no ``merge``.

        :meta private:
        """
        if self.parts is None:
            return super().read_limit(ref, reader)
        self.run_plan(self.parts.locate(ref.name))
        parts = self.parts.find_all(ref)
        if merge is None and len(parts) > 1:
            raise ConfigurationError(
                f"limit {ref.name!r} is divided by key among {len(parts)} shards, and this is read "
                f"of one of them; name a key, as in limiter[{ref.name!r}, 42]"
            )
        found = [self.run_plan(on(part, reader(part.observer))) for part in parts]
        return found[0] if merge is None else merge(found)

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
                one, which does not move. Nothing was changed.
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
