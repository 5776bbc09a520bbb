"""A limiter of several shards: the part of each shard, and plans that run each operation there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_throttle.errors import ConfigurationError
from celery_throttle.limiter.backend import Backend, make_backend
from celery_throttle.limiter.core import CACHE_SIZE, LimiterCore
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import Requirement
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.limits.shards import HOME, HOME_SHARD, OtherShardError, Shard, ShardMap
from celery_throttle.operations import define as definition_plans
from celery_throttle.operations.acquire import (
    AcquirePlans,
    learn,
    release,
    renew,
)
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Clock, Plan, on_store
from celery_throttle.operations.rules import Applied, FileRules
from celery_throttle.operations.shards import ShardFence, ShardIdentity, locate
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys, shard_prefix
from celery_throttle.store.script import Call
from celery_throttle.store.url import is_cluster_url, is_memory_url, is_store_url, safe_url

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

#: Finds the parts of limits: the settings may be wrong about one limit after the other.
_MAX_ATTEMPTS = 3


class LimitsOfShard(Mapping[str, Limits]):
    """Those of some limits that are in one shard, or whose keys are, as far as that is known."""

    def __init__(self, parts: Parts, shard: Shard, limits: Mapping[str, Limits]) -> None:
        self._parts, self._shard, self._limits = parts, shard, limits

    def __getitem__(self, name: str) -> Limits:
        if not self._parts.has(self._shard, name):
            raise KeyError(name)
        return self._limits[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._limits if self._parts.has(self._shard, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_urls(shard_map: ShardMap, home_url: str, setting: str = "throttle_shards") -> None:
    """Raise ConfigurationError for the URL of a shard that is not the URL of a server."""
    for entry in shard_map.entries.values():
        where = f"{setting}[{entry.name!r}] has url"
        if entry.url is not None and is_memory_url(home_url):
            raise ConfigurationError(f"{where}, and the home shard is in memory; leave it out")
        if entry.url is not None and not is_store_url(entry.url):
            raise ConfigurationError(
                f"{where} {safe_url(entry.url)!r}; allowed: the URL of a server, such as "
                "'redis://host:6379/0'"
            )


class Parts:
    """The part of each shard: a core with the keys and the server of the shard.

    Thread-safe without a lock: a process of a pool that is forked would inherit a held one.

    Args:
        shard_map: the shard of each limit, as the settings propose it.
        make: makes the part of a shard, at its first use.
    """

    def __init__(self, shard_map: ShardMap, make: Callable[[Parts, Shard], LimiterCore]) -> None:
        self._assigned = dict(shard_map.assigned)
        self.shard_map = replace(shard_map, assigned=self._assigned)
        self._make = make
        self._parts: dict[Shard, LimiterCore] = {}
        self._found: dict[tuple[LimitRef, ...], LimiterCore] = {}

    @property
    def home(self) -> LimiterCore:
        """The part of the home shard."""
        return self[HOME_SHARD]

    def __getitem__(self, shard: Shard) -> LimiterCore:
        part = self._parts.get(shard)
        return self._parts.setdefault(shard, self._make(self, shard)) if part is None else part

    @property
    def shards(self) -> list[Shard]:
        """All shards, the home shard first."""
        entries = self.shard_map.entries.values()
        return [HOME_SHARD, *(shard for entry in entries for shard in entry.shards)]

    def all(self) -> list[LimiterCore]:
        """Return the parts of all shards, that of the home shard first."""
        return [self[shard] for shard in self.shards]

    def has(self, shard: Shard, name: str) -> bool:
        """Whether a limit, or some of its keys, are in a shard."""
        try:
            entry = self.shard_map.entry_of(name)
        except OtherShardError:
            return False
        return shard.name == (HOME if entry is None else entry.name)

    def find(self, refs: Iterable[LimitRef]) -> LimiterCore:
        """Return the part that has all of some limits. Raises as :meth:`ShardMap.shard_of_all`."""
        refs = tuple(refs)
        found = self._found  # of before another thread learns something
        part = found.get(refs)
        if part is None:
            part = self[self.shard_map.shard_of_all(refs)]
            if len(found) >= CACHE_SIZE:
                found.clear()
            found[refs] = part
        return part

    def find_shard(self, refs: Iterable[LimitRef]) -> Plan[Shard]:
        """Return the shard that has all of some limits.

        If that would be two by what is known, the home shard says where each is: they may have
        moved. Raises as :meth:`ShardMap.shard_of_all` and :meth:`locate`.
        """
        refs = tuple(refs)
        try:
            return self.shard_map.shard_of_all(refs)
        except OtherShardError:
            raise
        except ConfigurationError:
            for name in dict.fromkeys(ref.name for ref in refs):
                yield from self.locate(name)
        return self.shard_map.shard_of_all(refs)

    def find_all(self, ref: LimitRef) -> list[LimiterCore]:
        """Return the parts that have a limit: several if it is divided by key and has none."""
        return [self[shard] for shard in self.shard_map.shards_of(ref)]

    def locate(self, name: str) -> Plan[None]:
        """Let the home shard say where a limit is. Raises as :func:`~.operations.shards.locate`."""
        if not self.home.observer.has_server:
            return
        location = yield from on(self.home, locate(self.home.keys, name))
        if location is not None:
            self.assign({name: location})

    def apply_rules(
        self, shard: Shard, file: FileRules, author: Author | None = None, *, is_new: bool = False
    ) -> Plan[Applied]:
        """Put the rules of a file in force that are in one shard."""
        shards_of, rules = self.shard_map.shards_of, file.rules
        limits = {ref: own for ref, own in rules.limits.items() if shard in shards_of(ref)}
        weights = {ref: own for ref, own in rules.weights.items() if shard in shards_of(ref)}
        own, part = file._replace(own=Rules(limits, weights)), self[shard]
        return on(part, part.plans.apply_rules(own, author, is_new=is_new))

    def assign(self, assigned: Mapping[str, str]) -> bool:
        """Note where the home shard has put limits; return whether that was unknown."""
        if assigned.items() <= self._assigned.items():
            return False
        self._assigned.update(assigned)
        self._found = {}
        return True


def _new_core(limits: Mapping[str, Limits]) -> LimiterCore:
    core = LimiterCore()
    core.limits = limits
    return core


@dataclass(frozen=True, slots=True)
class MakePart:
    """Makes the parts of a limiter.

    Attributes:
        url: of the home shard.
        limits: of the code, in all shards.
        prefix: of the home shard.
        timeout: see :class:`~celery_throttle.store.client.Store`.
        clock: replaces the servers'.
        new: makes a part with some limits.
        restore: makes the plan that puts the rules file in force in a shard that has lost it.
    """

    url: str = field(repr=False)  # it may contain a password
    limits: Mapping[str, Limits]
    prefix: str
    timeout: float
    clock: Clock | None = None
    new: Callable[[Mapping[str, Limits]], LimiterCore] = _new_core
    restore: Callable[[Parts, Shard], Plan[None]] | None = None

    def __call__(self, parts: Parts, shard: Shard) -> LimiterCore:
        """Return the part of a shard."""
        limits = LimitsOfShard(parts, shard, self.limits)
        part = self.new(limits)
        part.keys = Keys(shard_prefix(self.prefix, shard))
        part.clock = self.clock
        url, store, fence = self.url, None, None
        if shard != HOME_SHARD:
            entry = parts.shard_map.entries[shard.name]
            url = entry.url or url
            if not is_memory_url(url):
                fence = ShardFence(parts.home.keys, ShardIdentity.of(entry), parts.home.store)
            first = HOME_SHARD if entry.url is None else entry.shards[0]
            if shard != first:
                store = parts[first].store
                if is_cluster_url(url):  # each of its nodes has some shards
                    prefix = part.keys.prefix
                    store = Store(url, timeout=self.timeout, prefix=prefix, beside=store)
        part.backend = make_backend(
            *(url, limits, part.keys),
            timeout=self.timeout,
            clock=self.clock,
            restore=self.restore and partial(self.restore, parts, shard),
            fence=fence,
            store=store,
            shard=str(shard),
        )
        return part


def on(part: LimiterCore, plan: Plan[T]) -> Plan[T]:
    """Return a plan whose calls run in the shard of a part."""
    return on_store(part.store, plan)


def _in_one(
    operation: Callable[Concatenate[Any, A, P], Plan[T]],
    refs_of: Callable[[A], Iterable[LimitRef]],
) -> Callable[Concatenate[Any, A, P], Plan[T]]:
    """Return an operation that runs in the one shard of its limits."""
    name = operation.__name__

    def plan(self: ShardedPlans, subject: A, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
        return self.in_one(
            refs_of(subject), lambda plans: getattr(plans, name)(subject, *args, **kwargs)
        )

    return plan


def _in_all(
    operation: Callable[Concatenate[Any, LimitRef, P], Plan[T]],
    combine: Callable[[Sequence[Any]], Any] = lambda _: None,
) -> Callable[Concatenate[Any, LimitRef, P], Plan[T]]:
    """Return an operation that runs in all shards that have a limit, one after the other."""
    name = operation.__name__

    def plan(self: ShardedPlans, ref: LimitRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
        yield from self.parts.locate(ref.name)
        results = []
        for part in self.parts.find_all(ref):
            result = yield from on(part, getattr(part.plans, name)(ref, *args, **kwargs))
            results.append(result)
        return combine(results)  # type: ignore[no-any-return]  # of these results

    return plan


def _of_requirement(requirement: Requirement) -> Iterable[LimitRef]:
    return requirement.refs


class ShardedPlans:
    """The plans of all operations on the limits of several shards.

    What takes units runs in one shard. What changes or reads a whole limit runs in all shards that
    have it, one after the other: if it is interrupted, the same call completes it.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @property
    def limits(self) -> Mapping[str, Limits]:
        """The limits of the code in the home shard."""
        return self.parts.home.plans.limits

    acquire = _in_one(AcquirePlans.acquire, _of_requirement)
    try_acquire = _in_one(AcquirePlans.try_acquire, _of_requirement)
    peek = _in_one(AcquirePlans.peek, _of_requirement)
    acquire_up_to = _in_one(AcquirePlans.acquire_up_to, _of_requirement)
    settle = _in_one(AcquirePlans.settle, lambda acquisition: acquisition.requirement.refs)
    learn = _in_one(learn, lambda answers: answers)
    release = _in_one(release, lambda refs: refs)
    renew = _in_one(renew, lambda slots: [ref for ref, _ in slots])

    define = _in_all(definition_plans.define)
    undefine = _in_all(definition_plans.undefine)
    pause = _in_all(definition_plans.pause, max)
    resume = _in_all(definition_plans.resume, any)
    reset = _in_all(definition_plans.reset)
    check_known = _in_all(definition_plans.check_known)

    def cached_call(self, requirement: Requirement) -> Call | None:  # noqa: ARG002  # of any plans
        """Return None: the shard is found in a plan."""
        return None

    read_acquisition = staticmethod(AcquirePlans.read_acquisition)

    def in_one(self, refs: Iterable[LimitRef], make: Callable[[Any], Plan[T]]) -> Plan[T]:
        """Run a plan in the shard of some limits; ``make`` makes it from the plans of a shard.

        If the home shard says that they are elsewhere, it runs there.
        """
        refs = tuple(refs)
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                part = self.parts.find(refs)
            except ConfigurationError:
                part = self.parts[(yield from self.parts.find_shard(refs))]
            try:
                return (yield from on(part, make(part.plans)))
            except OtherShardError as error:
                self.parts.assign(error.assigned)  # or another thread has
                if self.parts.find(refs) is part:
                    raise
        part = self.parts.find(refs)
        return (yield from on(part, make(part.plans)))

    def list_names(self) -> Plan[tuple[int, list[str]]]:
        """Return the time of the home shard in microseconds, and the names of all limits."""
        now, every = 0, set[str]()
        for part in self.parts.all():
            at, names = yield from on(part, part.plans.list_names())
            now, every = now or at, every.union(names, part.plans.limits)
        return now, sorted(every)

    def register(self, limits: Mapping[str, Limits]) -> Plan[None]:
        """Put limits of the code in force, each in the shard where it is."""
        while True:
            for part in self.parts.all():
                own = {name: limits[name] for name in part.plans.limits if name in limits}
                try:
                    elsewhere = yield from on(part, part.plans.register(own))
                except OtherShardError as error:
                    elsewhere = error.assigned
                if elsewhere:
                    break
            else:
                return
            self.parts.assign(elsewhere)  # they may be in a shard before this one, so once more

    def apply_rules(
        self, file: FileRules, author: Author | None = None, *, is_new: bool = False
    ) -> Plan[Applied]:
        """Put the rules of a file in force, in each shard those of its limits.

        If it is interrupted, the same call completes it.
        """
        for name in {ref.name for ref in (*file.rules.limits, *file.rules.weights)}:
            yield from self.parts.locate(name)
        home, *others = self.parts.shards
        # The home shard decides which file is the newest, by its clock.
        applied = yield from self.parts.apply_rules(home, file, author, is_new=is_new)
        for shard in others if applied.accepted else ():
            own = file._replace(modified=applied.modified)
            yield from self.parts.apply_rules(shard, own, author)
        return applied


def backend_of_parts(parts: Parts) -> Backend:
    """Return the backend of a limiter with several shards; its server is that of the home shard."""
    home = parts.home.backend
    plans: Any = ShardedPlans(parts)  # which has the same operations
    return Backend(home.store, plans, home.observer)
