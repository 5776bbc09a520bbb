"""The core of a limiter that may have shards: calls that are not about one limit and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from celery_throttle.errors import ConfigurationError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.parts import Parts, ShardedPlans, on
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
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

    def run_in_shard(self, refs: Iterable[LimitRef], make: Callable[[Any], Plan[T]]) -> T:
        """Run a plan in the shard of some limits; ``make`` makes it from the plans of a shard.

        Raises:
            ConfigurationError: the limits are in two shards, or in one that this process lacks.

        :meta private:
        """
        plans: Any = self.plans
        if not isinstance(plans, ShardedPlans):
            return self.run_plan(make(plans))
        return self.run_plan(plans.in_one(refs, make))

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
