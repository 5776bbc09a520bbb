"""Plans for shards: they keep each limit in one shard, whatever the settings of processes say.

The home shard has the map of limits to shards (``lib/shard_map.lua``). A decision needs the
definition of its limits, and a limit is defined in one shard only:

* Before a process defines limits in another shard than the home shard, it asks the home shard, by
  :meth:`ShardFence.assign`. Its settings only propose: the first proposal counts, and a limit that
  the home shard has defined is there. ``define.lua`` and ``apply_rules.lua`` get the epoch of the
  answer.
* The home shard defines no limit that its map assigns to another shard.
* A limit moves in three steps, each of which may be repeated: :func:`begin_move` in the home shard,
  from which on no answer names the shard that it leaves; :func:`leave` there, which removes the
  definition, and refuses every later one with an older answer; :func:`end_move` in the home shard.
  So no two shards have the limit at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.limits.shards import HOME, ShardEntry, check_here
from celery_throttle.operations.plan import HomeCall, Plan, PlanContext
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.store.url import safe_url


class ShardIdentity(NamedTuple):
    """What must be equal in all processes that use a shard.

    Attributes:
        name: its name.
        by_key: the number of shards among which it divides keys; None: one shard.
        server: the URL of its server without secrets; empty for the server of the home shard.
    """

    name: str
    by_key: int | None = None
    server: str = ""

    @classmethod
    def of(cls, entry: ShardEntry) -> ShardIdentity:
        """Return the identity of an entry of the settings."""
        return cls(entry.name, entry.by_key, "" if entry.url is None else safe_url(entry.url))

    def pack(self) -> str:
        """Return what the map stores of it."""
        return f"{self.by_key or 0} {self.server}"


#: The identity of the home shard.
HOME_IDENTITY = ShardIdentity(HOME)


@dataclass(frozen=True, slots=True)
class ShardFence:
    """Asks the home shard whether limits belong to one shard; see the module.

    Attributes:
        home: the keys of the home shard.
        identity: that of the shard.
    """

    home: Keys
    identity: ShardIdentity

    def assign(self, names: Iterable[str]) -> Plan[int]:
        """Assign limits to the shard if they are nowhere; return the epoch of the answer.

        Raises:
            OtherShardError: a limit is in another shard.
            ConfigurationError: other processes have another shard with the same name.
            StoreError: a limit is being moved, or the home shard cannot be reached. That is no
                outage of this shard, so it is no StoreUnavailableError.
        """
        asked = [*names]
        try:
            reply = yield HomeCall(_assign_call(self.home, "assign", self.identity, asked))
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


def locate(home: Keys, name: str) -> Plan[str | None]:
    """Return the name of the shard that has a limit; None if it is nowhere.

    Raises:
        StoreError: it is being moved, or the home shard cannot be reached.
    """
    args: list[Argument] = ["", "HGET", 1, name, "HEXISTS", 1, name]
    _, entry, at_home = yield HomeCall(Call(script("read"), [home.shards, home.limits], args))
    if entry is None:
        return HOME if at_home else None
    _, _, location = entry.decode().partition(" ")
    _check_no_move(name, location)
    return str(location)


class Move(NamedTuple):
    """A move that has begun.

    Attributes:
        source: the name of the shard that the limit leaves.
        epoch: of the map; it is above that of every answer that the limit is there.
    """

    source: str
    epoch: int


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
    return Move(source, int(epoch))


def leave(context: PlanContext, name: str, move: Move, to: ShardIdentity) -> Plan[bool]:
    """Remove a limit from the shard that it leaves; False if tasks wait at it: then do nothing.

    Definitions and weights that were set at run time are removed as well.
    """
    keys = context.keys
    names = [*keys.definition_change, keys.waiting_list_index(name)]
    return bool((yield Call(script("leave"), names, [context.now(), name, move.epoch, to.name])))


def end_move(home: Keys, name: str, to: ShardIdentity) -> Plan[None]:
    """End the move of a limit, which every shard that it was in has left. In the home shard."""
    yield _assign_call(home, "arrive", to, [name])


def _assign_call(home: Keys, step: str, shard: ShardIdentity, names: Sequence[str]) -> Call:
    return Call(
        script("assign"), [home.limits, home.shards], ["", step, shard.name, shard.pack(), *names]
    )


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
