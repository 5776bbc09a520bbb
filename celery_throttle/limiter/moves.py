"""Moves limits from one shard to another: as a plan, each step of which may be repeated.

Laws at stake here: *never over* (the limit is in one shard only, see
:mod:`celery_throttle.operations.shards`; where it goes, it begins used up, and slots in use are
released before) and *never lost* (tasks stay in their lines, until a worker claims each of them
there and lets it wait where the limit is). How far a move has come is stored in the home shard, and
what the limit was, in the shard that it leaves. So the same call goes on after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.errors import ConfigurationError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.parts import Parts, on
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.grammar import CLAUSES
from celery_throttle.limits.key import LimitRef, check_name
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import has_slots, make_requirement
from celery_throttle.limits.shards import HOME, Shard
from celery_throttle.observe.observer import read_keys
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import read_definitions
from celery_throttle.operations.lines import WithdrawPlans, list_names, waiting_queues
from celery_throttle.operations.plan import Plan, Sleep
from celery_throttle.operations.shards import (
    HOME_IDENTITY,
    Left,
    Move,
    ShardIdentity,
    begin_move,
    check_identity,
    count_slots,
    end_move,
    enter,
    hand_over,
    leave,
    read_location,
)
from celery_throttle.store import definitions
from celery_throttle.store.keys import FAN_OUT_NAME

#: Seconds for which a limit stays paused after a look at its slots, and between two looks.
_PAUSE, _SLOTS_INTERVAL = 5.0, 0.5


class MovePreview(NamedTuple):
    """What it costs to move a limit to another shard.

    Attributes:
        limit: The name of the limit.
        source: The name of the shard in which it is.
        waiting: The tasks that wait for it. Each is claimed once more, to wait in the other shard.
        slots_used: The slots in use. The move waits until they are released.
        lost: The units that the limit could grant now, and cannot after the move; of a limit with
            keys, each key loses its own.
        pause: The longest time in seconds without starts after the move, besides the wait for
            slots. Further units come at the rate of the limit.
    """

    limit: str
    source: str
    waiting: int
    slots_used: int
    lost: int
    pause: float


@dataclass(frozen=True, slots=True)
class LimitMove:
    """A move of limits to a shard.

    Attributes:
        parts: the part of each shard.
        names: the limits.
        target: the name of the shard.
        together: of tasks, what they are called, and the names of the limits that each needs.
    """

    parts: Parts
    names: Sequence[str]
    target: str
    together: Iterable[tuple[str, frozenset[str]]] = ()

    def run(self, author: Author) -> Plan[None]:
        """Move the limits.

        Raises:
            ConfigurationError: they cannot move, and nothing was done: the settings do not name a
                shard, or divide its limits by key; a live worker does not have the shard; a task
                needs one of them together with a limit that stays where it is.
            StoreError: a server cannot be reached. The same call goes on with the move.
        """
        sources = yield from self._check()
        to, home, part = self._identity(self.target), self.parts.home, self._part(self.target)
        yield from on(home, check_identity(home.keys, to))
        for name, source in sources.items():
            if source != self.target:  # before the first step: a call that waits can be given up
                limits = yield from self._limits(source, name)
                if any(map(has_slots, limits)):
                    yield from self._wait_for_slots(name, source, _PAUSE, author)
        moves = []
        for name, source in sources.items():
            if source != self.target:
                move = yield from on(home, begin_move(home.keys, name, to))
                moves.append(move)
        left = yield from self._leave(moves, to, author)
        for move, gone in zip(moves, left, strict=True):
            yield from on(part, enter(part.plans, move, gone, to, author))
        epoch = yield from on(home, end_move(home.keys, self.names, to))
        self.parts.assign(dict.fromkeys(self.names, self.target))
        for name, source in sources.items():
            # An earlier call may have ended before this, and nobody knows which shard it has left.
            others = self._others() if source == self.target else [self._part(source)]
            for each in others:
                yield from on(each, hand_over(each.plans, name, epoch, to))

    def _leave(
        self, moves: Sequence[Move], to: ShardIdentity, author: Author
    ) -> Plan[Sequence[Left]]:
        """Let limits leave their shards. Their slots were released before."""
        left = []
        for move in moves:
            part = self._part(move.source)
            left.append((yield from on(part, leave(part.plans, move, to))))
        for move, gone in zip(moves, left, strict=True):
            if gone.has_slots:  # the pause has ended, or somebody has lifted it
                yield from self._wait_for_slots(move.name, move.source, 0.0, author)
        return left

    def preview(self) -> Plan[list[MovePreview]]:
        """Return what the move costs. Raises as :meth:`run`."""
        sources = yield from self._check()
        found = []
        for name, source in sources.items():
            part = self._part(source)
            limits = yield from self._limits(source, name)
            waiting = 0
            for tasks, _ in (yield from self._lines(part, name)):
                waiting += tasks
            used = 0
            if any(map(has_slots, limits)):
                used = yield from on(part, count_slots(part.plans, name, 0.0, Author.of()))
            pauses = [
                _pause_of(limit, limit.rate) for limit in limits if isinstance(limit.rate, Rate)
            ]
            lost = 0
            if pauses and source != self.target:
                requirement = make_requirement([LimitRef(name, None)], 0, 0)
                lost = (yield from on(part, part.plans.peek(requirement))).remaining
            found.append(MovePreview(name, source, waiting, used, lost, max(pauses, default=0.0)))
        return found

    def _check(self) -> Plan[dict[str, str]]:
        """Return the shard that each limit leaves; raise ConfigurationError if it cannot move."""
        for name in self.names:
            check_name(name)
        self._part(self.target)
        yield from self._check_workers()
        sources: dict[str, str] = {}
        new = set[str]()
        for name in self.names:
            source, _, target = (yield from self._locate(name)).partition(" ")
            if target not in ("", self.target):
                raise ConfigurationError(
                    f"limit {name!r} cannot move to shard {self.target!r}: it moves to shard "
                    f"{target!r}; end that move first"
                )
            sources[name] = source
            if not target and source != self.target:
                new.add(name)
            self._part(source)
            if not any(name in part.limits for part in self.parts.all()):
                part = self._part(source)
                yield from on(part, part.plans.check_known(LimitRef(name, None)))
        yield from self._check_together(sources, new)
        return sources

    def _check_workers(self) -> Plan[None]:
        """Raise ConfigurationError if a live worker does not have the shard."""
        every = yield from _live_workers(self.parts.home)
        having = yield from _live_workers(self._part(self.target))
        missing = sorted(every - having)
        if missing:
            raise ConfigurationError(
                f"{len(missing)} of {len(every)} live workers, such as {missing[0]!r}, do not have "
                f"shard {self.target!r}: first give all processes the same throttle_shards"
            )

    def _check_together(self, sources: dict[str, str], new: set[str]) -> Plan[None]:
        """Raise ConfigurationError if tasks need a limit that moves with one that stays.

        A fan-out stays, with its pause. But a move that has begun, of limits that are not ``new``,
        goes on.
        """
        needs = [*self.together]
        for name, source in sources.items():
            part = self._part(source)
            for tasks, needed in (yield from self._lines(part, name)):
                if FAN_OUT_NAME in needed and name in new:
                    raise ConfigurationError(
                        f"{tasks:,} tasks of a fan-out wait for limit {name!r}, and fan-outs stay "
                        "in their shard; let these tasks run, or drain or drop them before the move"
                    )
                needs.append((f"{tasks:,} waiting tasks", frozenset(needed) - {FAN_OUT_NAME}))
        located: dict[str, str] = dict.fromkeys(self.names, self.target)
        for what, names in needs:
            moving = sorted(names & sources.keys())
            for other in sorted(names - sources.keys()) if moving else ():
                if other not in located:
                    located[other] = yield from self._locate(other)
                if located[other] != self.target:
                    raise ConfigurationError(
                        f"{what}: limit {moving[0]!r} is needed together with {other!r}, which is "
                        f"in shard {located[other]!r}; one call decides in one shard: move both, "
                        "in one call"
                    )

    def _locate(self, name: str) -> Plan[str]:
        """Return where a limit is; one that is nowhere yet counts as in the home shard."""
        return (yield from on(self.parts.home, read_location(self.parts.home.keys, name))) or HOME

    def _identity(self, shard: str) -> ShardIdentity:
        if shard == HOME:
            return HOME_IDENTITY
        return ShardIdentity.of(self.parts.shard_map.entries[shard])

    def _part(self, shard: str) -> LimiterCore:
        """Return the part of a shard that does not divide keys."""
        entries = self.parts.shard_map.entries
        if shard != HOME and shard not in entries:
            known = ", ".join(map(repr, (HOME, *entries)))
            raise ConfigurationError(f"throttle_shards has no shard {shard!r}; allowed: {known}")
        if shard != HOME and entries[shard].by_key is not None:
            raise ConfigurationError(
                f"shard {shard!r} divides its limits by key (by_key), so no limit can move to it "
                "or from it; allowed: a shard without by_key"
            )
        return self.parts[Shard(shard)]

    def _others(self) -> list[LimiterCore]:
        shards = [shard for shard in self.parts.shards if shard.by_key is None]
        return [self.parts[shard] for shard in shards if shard.name != self.target]

    def _limits(self, shard: str, name: str) -> Plan[Limits]:
        """Return the limits of a name that are in force in a shard."""
        part = self._part(shard)
        (packed,) = yield from on(part, read_definitions(part.plans, [name]))
        return definitions.unpack(packed) if packed else ()

    def _wait_for_slots(self, name: str, source: str, pause: float, author: Author) -> Plan[None]:
        part = self._part(source)
        while (yield from on(part, count_slots(part.plans, name, pause, author))):
            yield Sleep(_SLOTS_INTERVAL)

    def _lines(self, part: LimiterCore, name: str) -> Plan[list[tuple[int, list[str]]]]:
        """Return the lines that need a limit: how many tasks wait, and the names of its limits."""
        # They may wait at another of their limits.
        _, names = yield from on(part, list_names(part.observer))
        queues, _ = yield from on(part, waiting_queues(part.keys, {name, *names}))
        lines = []
        for queue in queues:
            plans = WithdrawPlans(part.keys, LimitRef(name, None), part.plans.now())
            lines += yield from on(part, plans.limits_of_lines(queue))
        return lines


def _live_workers(part: LimiterCore) -> Plan[set[str]]:
    command = "ZRANGE", part.keys.membership, 0, -1, "WITHSCORES"
    now, (found,) = yield from on(part, read_keys(part.observer, command))
    pairs = zip(found[::2], found[1::2], strict=True)
    return {name.decode() for name, ends in pairs if float(ends) > now}


def _pause_of(limit: Limit, rate: Rate) -> float:
    """Return after how many seconds a limit that is used up grants a unit, at most."""
    units = 1 if "burst" not in CLAUSES[limit.algorithm] else rate.count
    return rate.period_us / MICROSECONDS / units
