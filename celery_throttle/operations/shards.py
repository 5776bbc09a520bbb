"""Plans for shards: they keep each limit in one shard, whatever the settings of processes say.

The home shard has the map of limits to shards (``lib/shard_map.lua``). A decision needs the
definition of its limits, and a limit is defined in one shard only:

* Before a process defines limits in another shard than the home shard, it asks the home shard, by
  :meth:`ShardFence.assign`. Its settings only propose: the first proposal counts, and a limit that
  the home shard has defined is there. ``define.lua`` and ``apply_rules.lua`` get the epoch of the
  answer.
* The home shard defines no limit that its map assigns to another shard.
* A limit moves in steps, each of which may be repeated: :func:`begin_move` in the home shard, from
  which on no answer names the shard that it leaves; :func:`leave` there, which removes the
  definition, and refuses every later one with an older answer; :func:`enter` where it goes, as if
  all its units were in use; :func:`end_move` in the home shard; :func:`hand_over` of the tasks that
  wait where it was. So no two shards have the limit at any time. See
  :mod:`celery_throttle.limiter.moves`.

If the home shard loses its data, the map is lost. Until it is made anew, a process that proposes
another shard for a limit, or none, is granted the limit there as well: by its rate and burst, once
more. Each shard stores of its limits the epoch of the last answer. Workers repeat that with their
heartbeats, by :meth:`ShardFence.repeat`, so this lasts for ten seconds at most while a worker of
the shard lives, and while a move that was under way has not ended. The latest answer counts, and
the other definition is given up: its tasks go where the limit is. Marks of limits that have left a
shard may have a later epoch than the new map, so a process that is refused by one tells the home
shard of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME, ShardEntry, check_here
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import make_due
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan, PlanContext, StoreCall, on_store, read_call
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.store.url import safe_url


class ShardIdentity(NamedTuple):
    """What must be equal in all processes that use a shard."""

    name: str
    by_key: int | None = None  #: the number of shards among which it divides keys; None: one shard
    #: The URL of its server without secrets; empty for the server of the home shard.
    server: str = ""

    @classmethod
    def of(cls, entry: ShardEntry) -> ShardIdentity:
        """Return the identity of an entry of the settings."""
        return cls(entry.name, entry.by_key, "" if entry.url is None else safe_url(entry.url))

    def pack(self) -> str:
        """Return what the map stores of it."""
        return f"{self.by_key or 0} {self.server}"


HOME_IDENTITY = ShardIdentity(HOME)


@dataclass(frozen=True, slots=True)
class ShardFence:
    """Asks the home shard whether limits belong to one shard; see the module."""

    home: Keys  #: the keys of the home shard
    identity: ShardIdentity  #: that of the shard
    store: Store  #: the server of the home shard

    def assign(self, names: Iterable[str], least: int = 0) -> Plan[int]:
        """Assign limits to the shard if they are nowhere; return the epoch of the answer.

        ``least``: an epoch that the shard knows; that of the answer is no less.

        Raises:
            OtherShardError: a limit is in another shard.
            ConfigurationError: other processes have another shard with the same name.
            StoreError: a limit is being moved, or the home shard cannot be reached. That is no
                outage of this shard, so it is no StoreUnavailableError.
        """
        asked = [*names]
        call = _assign_call(self.home, "assign", self.identity, asked, least)
        try:
            reply = yield StoreCall(self.store, call)
        except StoreUnavailableError as error:
            raise StoreError(
                f"limits of shard {self.identity.name!r} are not registered, and the home shard, "
                f"which does that, cannot be reached: {error}"
            ) from error
        epoch, identity, *locations = reply
        _check_identity(self.identity, identity.decode())
        found = dict(zip(asked, (location.decode() for location in locations), strict=True))
        for name, location in found.items():
            _check_no_move(name, location)
        check_here({name: one for name, one in found.items() if one != self.identity.name})
        return int(epoch)

    def repeat(self, context: PlanContext, names: Iterable[str]) -> Plan[None]:
        """Repeat to the home shard that limits are in this shard, those that are.

        If the home shard has lost its map, it learns them again, and gives up a definition of its
        own. A limit of which it has a later answer is given up here.

        Raises as :meth:`assign`, except for OtherShardError.
        """
        keys, asked = context.keys, [*names]
        reads = [("HGET", key, name) for name in asked for key in (keys.shards, keys.limits)]
        _, *found = yield read_call(context.now(), *reads)
        since: list[Argument] = []
        for name, entry, record in zip(asked, found[::2], found[1::2], strict=True):
            if record is not None and entry is not None and entry.endswith(b" @"):
                since += (name, int(entry[:-2]))
        if not since:
            return
        least = 1 + max(int(epoch) for epoch in since[1::2])  # later than these
        call = _assign_call(self.home, "repeat", self.identity, since, least)
        epoch, identity, *locations = yield StoreCall(self.store, call)
        _check_identity(self.identity, identity.decode())
        for here, location in zip(since[::2], locations, strict=True):
            yield from self._give_up(context, str(here), location.decode(), int(epoch))

    def _give_up(self, context: PlanContext, name: str, location: str, epoch: int) -> Plan[None]:
        """Give up one of two definitions: that of the home shard, or the one here."""
        shard = location.removeprefix("@")
        if " " in shard:  # it is being moved
            return
        to = ShardIdentity(shard)
        if location.startswith("@"):
            at_home = PlanContext({}, self.home, context.clock)
            yield from on_store(self.store, hand_over(at_home, name, epoch, to))
        if shard != self.identity.name:
            yield from hand_over(context, name, epoch, to)


class Move(NamedTuple):
    """A move that has begun."""

    name: str  #: that of the limit
    source: str  #: the name of the shard that the limit leaves
    epoch: int  #: of the map; it is above that of every answer that the limit is there


class Left(NamedTuple):
    """What a shard had of a limit that has left it."""

    packed: bytes  #: as ``leave.lua`` replies it: definitions, weights and pauses
    has_slots: bool  #: whether the limit has slots


def locate(home: Keys, name: str) -> Plan[str | None]:
    """Return the name of the shard that has a limit; None if it is nowhere.

    Raises:
        StoreError: it is being moved, or the home shard cannot be reached.
    """
    location = yield from read_location(home, name)
    _check_no_move(name, location)
    return location or None


def read_location(home: Keys, name: str) -> Plan[str]:
    """Return the name of the shard that has a limit; empty if it is nowhere.

    While it moves, the shards that it leaves and goes to, separated by a space.

    Raises:
        StoreError: the home shard cannot be reached.
    """
    reads = ("HGET", home.shards, name), ("HEXISTS", home.limits, name)
    _, entry, at_home = yield read_call("", *reads)
    if entry is None:
        return HOME if at_home else ""
    _, _, location = entry.decode().partition(" ")
    return HOME if location == "@" else str(location)


def check_identity(home: Keys, own: ShardIdentity) -> Plan[None]:
    """Raise ConfigurationError if other processes have another shard with the same name."""
    _, stored = yield read_call("", ("HGET", home.shards, f"@{own.name}"))
    if stored is not None:
        _check_identity(own, stored.decode())


def begin_move(home: Keys, name: str, to: ShardIdentity) -> Plan[Move]:
    """Begin to move a limit to a shard, or go on with that. In the home shard.

    Raises:
        ConfigurationError: the limit is in the shard, or moves to another one, or other processes
            have another shard with the same name.
    """
    epoch, identity, location = yield _assign_call(home, "move", to, [name])
    _check_identity(to, identity.decode())
    source, _, target = location.decode().partition(" ")
    if target != to.name:
        moves = f"moves to shard {target!r}" if target else f"is in shard {source!r}"
        raise ConfigurationError(
            f"limit {name!r} cannot move to shard {to.name!r}: it {moves}; allowed: another shard, "
            "after any other move has ended"
        )
    return Move(name, source, int(epoch))


def leave(context: PlanContext, move: Move, to: ShardIdentity) -> Plan[Left]:
    """Remove a limit from the shard that it leaves; return what was there.

    Tasks that wait at the limit stay until :func:`hand_over`.
    """
    packed, has_slots = yield _leave_call(context, move.name, move.epoch, to.name)
    return Left(packed, bool(has_slots))


def enter(
    context: PlanContext, move: Move, left: Left, to: ShardIdentity, author: Author
) -> Plan[None]:
    """Put a limit in force, used up, in the shard that it moves to. Nothing if that was done."""
    args = move.name, move.epoch, left.packed, move.source, to.name, author.pack()
    yield context.call("enter", context.keys.shard_move, *args)


def count_slots(context: PlanContext, name: str, pause: float, author: Author) -> Plan[int]:
    """Return how many slots of a limit and its keys are in use. In the shard that it leaves.

    It is paused meanwhile, and for ``pause`` seconds longer.
    """
    keys, whole = context.keys, LimitRef(name, None)
    names = [*keys.pause_change(whole)[:3], keys.entries(whole)]
    cursor, used = b"", 0
    while cursor != END:
        args = to_us(pause), author.pack(), cursor or "0"
        cursor, found = yield context.call("pause_for_slots", names, *args)
        used += found
    return used


def end_move(home: Keys, names: Sequence[str], to: ShardIdentity) -> Plan[int]:
    """End the move of limits, which every shard that they were in has left. In the home shard.

    Returns the epoch of the map.
    """
    epoch, *_ = yield _assign_call(home, "arrive", to, names)
    return int(epoch)


def hand_over(context: PlanContext, name: str, epoch: int, to: ShardIdentity) -> Plan[None]:
    """Let the tasks of a shard go to another one, in which the limit is at which they wait.

    A worker claims them here, without units, and its gate decides about them there.
    """
    yield _leave_call(context, name, epoch, to.name, has_gone=True)
    yield from make_due(context, name)


def _leave_call(
    context: PlanContext, name: str, epoch: int, shard: str, *, has_gone: bool = False
) -> Call:
    args = name, epoch, shard, int(has_gone)
    return context.call("leave", context.keys.shard_move, *args)


def _assign_call(
    home: Keys, step: str, shard: ShardIdentity, limits: Sequence[Argument], least: int = 0
) -> Call:
    args = ["", step, shard.name, shard.pack(), least, *limits]
    return Call(script("assign"), [home.limits, home.shards], args)


def _check_identity(own: ShardIdentity, stored: str) -> None:
    if stored != own.pack():
        by_key, _, server = stored.partition(" ")
        other = ShardIdentity(own.name, int(by_key) or None, server)
        raise ConfigurationError(
            f"shard {own.name!r} has {_describe(other)} in other processes, and {_describe(own)} "
            "here; allowed: the same in all processes, or another name"
        )


def _describe(identity: ShardIdentity) -> str:
    return f"by_key {identity.by_key} and url {identity.server or None!r}"


def _check_no_move(name: str, location: str) -> None:
    _, _, target = location.partition(" ")
    if target:
        raise StoreError(f"limit {name!r} is being moved to shard {target!r}: try again later")
