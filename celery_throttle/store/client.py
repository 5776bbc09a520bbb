"""Runs each :class:`~celery_throttle.store.script.Call` on the server that keeps the limits.

Both ends, :meth:`Store.run` and :meth:`Store.arun`, hold wires of their own instead of a client's
pool: the per-call checks of a pool cost more than a decision does. A wire belongs to one call at a
time, so threads, greenlets and asyncio tasks may share a store. After a fork the child opens wires
of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import hiredis

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.store.address import Address
from celery_throttle.store.breaker import Breaker
from celery_throttle.store.connection import AnyWire, AsyncWire, Wire
from celery_throttle.store.connection_plan import Ask, Connect, Steps, aperform, perform
from celery_throttle.store.keys import DEFAULT_PREFIX, has_hash_tag
from celery_throttle.store.script import Call, pack
from celery_throttle.store.server_errors import Means, Refusal
from celery_throttle.store.url import is_cluster_url, read_url, safe_url

#: Errors that one call may meet and get over: a script to load, nodes that send it on.
_DETOURS = 5

_ASKING = pack("ASKING")
_PING = pack("PING")


@dataclass(frozen=True, slots=True)
class Begun:
    """A call on its way."""

    call: Call
    wire: Wire


class Store:
    """Runs scripts on a Redis or Valkey server.

    Args:
        url: the server, or where to find it; see :mod:`celery_throttle.store.url`.
        timeout: seconds for connecting and for each reply; default 1.
        prefix: of all names in Redis; in a cluster it must have a hash tag.

    Raises:
        ConfigurationError: the URL is of no server that can keep limits, or the prefix is of none
            that a cluster can keep.
    """

    def __init__(self, url: str, *, timeout: float = 1.0, prefix: str = DEFAULT_PREFIX) -> None:
        self._servers = read_url(url, timeout)
        self.url = safe_url(url)
        self._prefix = prefix
        self._timeout = timeout
        if is_cluster_url(url) and not has_hash_tag(prefix):
            raise ConfigurationError(f"{self.url} is a cluster: {_untagged(prefix)}")
        self.breaker = Breaker()
        self._idle: deque[Wire] = deque()
        self._pid = os.getpid()
        self._aidle: dict[asyncio.AbstractEventLoop, deque[AsyncWire]] = {}

    @property
    def generation(self) -> int:
        """Grows when the server may be another one than before: for who holds a connection."""
        return self._servers.generation

    def connection(self) -> Any:
        """A new connection of redis-py, for subscriptions. Raises as :meth:`run`."""
        return self._open().release()

    def run(self, call: Call) -> Any:
        """Run a script and give its reply, texts as bytes.

        Raises:
            StoreUnavailableError: no server can be reached, or answers in time, or can serve now.
            StoreError: the server answered with another error.
        """
        if self.breaker.is_open:
            self.breaker.check()
        return self.probe(call)

    def probe(self, call: Call) -> Any:
        """:meth:`run`, though the server is taken to be out: to find out."""
        wire = self._take()
        try:
            wire.send(call.packed)
            reply = wire.read()
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, wire)
        if type(reply) is not list or self.breaker.is_open:
            return self._done(wire, call, reply)
        self._idle.append(wire)  # all there is to do for most
        return reply

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run several in one round trip, in order: their replies, or the errors of those refused.

        Raises:
            StoreError: as :meth:`run`; nobody knows, then, which of them were carried out.
        """
        if len(calls) < 2 or self.breaker.is_open:  # noqa: PLR2004  # the way of most
            return [self.run(call) for call in calls]
        wire = self._take()
        try:
            wire.send(b"".join(call.packed for call in calls))
            replies = [wire.read() for _ in calls]
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, wire)
        self._idle.append(wire)
        return [self._settled(*each) for each in zip(calls, replies, strict=True)]

    def _settled(self, call: Call, reply: Any) -> Any:
        """What the server has not begun may take a detour by itself."""
        try:
            if not isinstance(reply, hiredis.ReplyError):
                return reply
            begun = Refusal(str(reply)).means is Means.NEVER
            return self._valid(reply) if begun else self.run(call)
        except StoreError as error:
            return error

    def confirm(self, replicas: int) -> None:
        """Wait until so many replicas have all that was written before.

        Raises:
            StoreError: in half the time for a reply they do not.
            StoreUnavailableError: see :meth:`run`.
        """
        wait = pack("WAIT", replicas, max(1, round(self._timeout * 500)))
        wire = self._take()
        # A connection waits for what had been written at its last command.
        confirmed = perform(self._ask(wire, _PING, wait))
        self._idle.append(wire)
        if self._valid(confirmed) < replicas:
            raise StoreError(
                f"of the replicas of the server at {self.url} only {confirmed} confirmed what was "
                f"written, not {replicas} (throttle_replicas)"
            )

    def begin(self, call: Call) -> Begun:
        """Send a script's call; :meth:`finish` waits for the reply. Raises as :meth:`run`."""
        if self.breaker.is_open:
            self.breaker.check()
        wire = self._take()
        try:
            wire.send(call.packed)
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, wire)
        return Begun(call, wire)

    def finish(self, begun: Begun) -> Any:
        """Give the reply to a call that was begun, once. Raises as :meth:`run`."""
        try:
            reply = begun.wire.read()
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, begun.wire)
        return self._done(begun.wire, begun.call, reply)

    def _done(self, wire: Wire, call: Call, reply: Any) -> Any:
        if isinstance(reply, hiredis.ReplyError):
            wire, reply = perform(self._detour(call, wire, reply))
        self._idle.append(wire)
        return self._valid(reply)

    def _take(self) -> Wire:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        idle = self._idle
        while idle:
            try:
                wire = idle.pop()
            except IndexError:  # another thread was faster
                break
            if wire.is_fresh() or self._is_good(wire):
                return wire
            wire.close()
        return self._open()

    def _open(self) -> Wire:
        wire: Wire = perform(self._find())
        return wire

    async def arun(self, call: Call) -> Any:
        """The same as :meth:`run` for asyncio."""
        if self.breaker.is_open:
            self.breaker.check()
        idle = self._idle_of(asyncio.get_running_loop())
        wire = await self._atake(idle)
        try:
            wire.send(call.packed)
            reply = await wire.read()
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, wire)
        if isinstance(reply, hiredis.ReplyError):
            wire, reply = await aperform(self._detour(call, wire, reply))
        idle.append(wire)
        return self._valid(reply)

    def _idle_of(self, loop: asyncio.AbstractEventLoop) -> deque[AsyncWire]:
        if loop not in self._aidle:
            # A wire holds its loop, so weak references would never let go of either.
            for ended in [one for one in list(self._aidle) if one.is_closed()]:
                self._aidle.pop(ended, None)
            self._aidle[loop] = deque()
        return self._aidle[loop]

    async def _atake(self, idle: deque[AsyncWire]) -> AsyncWire:
        while idle:
            wire = idle.pop()
            if wire.is_fresh() or self._is_good(wire):
                return wire
            wire.close()
        found: AsyncWire = await aperform(self._find())
        return found

    # What is rare, for both ends.

    def _is_good(self, wire: AnyWire) -> bool:
        return wire.generation == self._servers.generation and wire.is_open()

    def _find(self) -> Steps[Any]:
        try:
            return (yield from self._servers.find())
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error)

    def _ask(self, wire: AnyWire, *commands: bytes) -> Steps[Any]:
        try:
            return (yield Ask(wire, commands))
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error, wire)

    def _detour(self, call: Call, wire: Any, reply: Any) -> Steps[tuple[Any, Any]]:
        """Do what an error asks for. Gives the wire that is used at the end, and the last reply."""
        met: list[str] = []
        while isinstance(reply, hiredis.ReplyError) and len(met) < _DETOURS:
            refusal = Refusal(str(reply))
            if refusal.means is Means.LOAD:
                reply = yield from self._ask(wire, _load(call), call.packed)
            elif refusal.means is Means.ASK:
                reply = yield from self._ask_there(call, wire.address.at(*refusal.redirect))
            elif refusal.text not in met and self._is_elsewhere(wire, refusal):
                wire.close()
                wire = yield from self._find()
                reply = yield from self._ask(wire, call.packed)
            else:
                break
            met.append(refusal.text)
        return wire, reply

    def _is_elsewhere(self, wire: AnyWire, refusal: Refusal) -> bool:
        """Whether another server may carry a call out; it is the one that is found next."""
        if refusal.means is Means.MOVED and has_hash_tag(self._prefix):
            self._servers.moved(wire, refusal.redirect)
            return True
        return refusal.means is Means.ELSEWHERE and self._servers.lost(wire)

    def _ask_there(self, call: Call, address: Address) -> Steps[Any]:
        """Ask a node to which a slot is moving. It serves those that say so, one by one."""
        try:
            wire = yield Connect(address)
        except BaseException as error:  # noqa: BLE001  # raised there
            self._fail(error)
        reply = yield from self._ask(wire, _load(call), _ASKING, call.packed)
        wire.close()
        return reply

    def _fail(self, error: BaseException, wire: AnyWire | None = None) -> NoReturn:
        """Raise what a call raises that got no reply.

        Here it is known which of two it was. Without a wire, or out of time, the server is out:
        the next call would wait as long. Otherwise an open connection was cut in the middle of a
        call: nobody knows whether that was carried out, but the server may answer the next one.
        """
        if wire is not None:
            wire.close()
        if isinstance(error, hiredis.HiredisError):
            refusal = Refusal(str(error))
            raise StoreError(f"the server at {self.url} refused a connection: {refusal}") from error
        if not isinstance(error, OSError):
            raise error
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot be reached: {error}")
        if wire is not None:
            self._servers.lost(wire)
        if wire is None or isinstance(error, (TimeoutError, BlockingIOError)):
            self.breaker.trip(unavailable)
        raise unavailable from error

    def _valid(self, reply: Any) -> Any:
        """A reply that is no error."""
        if not isinstance(reply, hiredis.ReplyError):
            self.breaker.close()
            return reply
        refusal = Refusal(str(reply))
        if refusal.code in ("CROSSSLOT", "MOVED") and not has_hash_tag(self._prefix):
            raise StoreError(f"the server at {self.url} is a cluster: {_untagged(self._prefix)}")
        if refusal.means in (Means.NEVER, Means.FULL):
            self.breaker.close()
            raise StoreError(f"the server at {self.url} refused a call: {refusal}")
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot serve now: {refusal}")
        self.breaker.trip(unavailable)
        raise unavailable

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens new ones."""
        while self._idle:
            self._idle.pop().close()

    async def aclose(self) -> None:
        """Close the idle connections of the running event loop."""
        for wire in self._aidle.pop(asyncio.get_running_loop(), ()):
            await wire.aclose()


def _load(call: Call) -> bytes:
    return pack("SCRIPT", "LOAD", call.script.source)


def _untagged(prefix: str) -> str:
    return (
        f"the prefix {prefix!r} must have a hash tag, which keeps all names on one node, "
        f"such as {DEFAULT_PREFIX!r} (throttle_prefix)"
    )
