"""The store: runs each :class:`~celery_throttle.store.script.Call` on the limits server.

A store pools its connections itself: the checks of a client's pool cost more than a decision. A
blocking connection serves one call at a time, and the calls of an event loop share one connection,
so threads, greenlets and asyncio tasks may share a store. After a fork the child opens connections
of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import hiredis

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.store.async_connection import (
    AnyConnection,
    AsyncConnection,
    send_step,
)
from celery_throttle.store.breaker import CircuitBreaker
from celery_throttle.store.connection import Address, Connection
from celery_throttle.store.keys import DEFAULT_PREFIX, has_hash_tag
from celery_throttle.store.pending import PendingCalls
from celery_throttle.store.script import Call, pack_command
from celery_throttle.store.server_errors import ErrorReply, Remedy
from celery_throttle.store.steps import (
    Step,
    Steps,
    arun_steps,
    run_steps,
    sleep_step,
    waits,
)
from celery_throttle.store.topology import NoServers, Servers
from celery_throttle.store.url import MEMORY_URL, is_cluster_url, read_url, safe_url

#: Error replies that one call recovers from at once: a script to load, redirections of nodes. A
#: call that gets more of them, or the same one again, waits between its attempts, for its
#: timeout at most.
_MAX_RECOVERIES = 5

_PING = pack_command("PING")


@dataclass(slots=True, eq=False)
class _LoopConnection:
    """The connection of one event loop, and the lock under which it is opened."""

    connection: AsyncConnection | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Store:
    """Runs scripts on a Redis or Valkey server.

    Args:
        url: the server, Sentinels or nodes; see :mod:`celery_throttle.store.url`.
        timeout: seconds for connecting and for each reply; default 1.
        prefix: the prefix of all keys; in a cluster it must have a hash tag.
        beside: a store of other keys in the same cluster. If a node does not reply to one of the
            stores, the others do not wait for it.

    Raises:
        ConfigurationError: the URL cannot be used, or a cluster's prefix has no hash tag.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 1.0,
        prefix: str = DEFAULT_PREFIX,
        beside: Store | None = None,
    ) -> None:
        self._servers: Servers = read_url(url, timeout)
        self.url = safe_url(url)  #: without secrets
        self._prefix = prefix
        self._timeout = timeout
        if is_cluster_url(url) and not has_hash_tag(prefix):
            raise ConfigurationError(f"{self.url} is a cluster: {_hash_tag_error(prefix)}")
        self.breaker = CircuitBreaker()
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopConnection] = {}
        #: The stores of the same cluster, this one included.
        self.cluster: list[Store] = [] if beside is None else beside.cluster
        self.cluster.append(self)

    @property
    def generation(self) -> int:
        """Increases when another server may be in charge, so connections must be replaced."""
        return self._servers.generation

    @property
    def node(self) -> str:
        """The address of the server that is called first."""
        return self._servers.node

    def connection(self) -> Connection:
        """Open a connection of its own, such as for subscriptions. Raises as :meth:`run`."""
        return self._open()

    def run(self, call: Call) -> Any:
        """Run a script and return its reply, with strings as bytes.

        Raises:
            StoreUnavailableError: no server can be reached, replies in time, or can serve now.
            StoreError: the server replied with another error.
        """
        if self.breaker.is_open:
            self.breaker.check()
        return self.probe(call)

    def probe(self, call: Call) -> Any:
        """Run a script even if the circuit breaker is open: a test whether the server is back."""
        connection = self._take()
        try:
            connection.send(call.packed)
            reply = connection.read()
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error, connection)
        if type(reply) is not list or self.breaker.is_open:
            return self._conclude(connection, call, reply)
        self._idle.append(connection)  # the usual case
        return reply

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one round trip, in order; return the reply or error of each.

        Raises:
            StoreError: as :meth:`run`; it is unknown which of the scripts were executed.
        """
        if len(calls) < 2 or self.breaker.is_open:  # noqa: PLR2004  # a single call
            return [self.run(call) for call in calls]
        connection = self._take()
        try:
            connection.send(b"".join(call.packed for call in calls))
            replies = [connection.read() for _ in calls]
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error, connection)
        self._idle.append(connection)
        return [self._resolve(*pair) for pair in zip(calls, replies, strict=True)]

    def _resolve(self, call: Call, reply: Any) -> Any:
        """Run a call of several again by itself, if the server refused it before it began."""
        try:
            if not isinstance(reply, hiredis.ReplyError):
                return self._check_reply(reply)
            began = ErrorReply(str(reply)).remedy is Remedy.NONE
            return self._check_reply(reply) if began else self.run(call)
        except StoreError as error:
            return error

    def confirm(self, replicas: int) -> None:
        """Wait until a number of replicas have received all earlier writes.

        Raises:
            StoreError: fewer replicas confirmed them within half the timeout.
            StoreUnavailableError: see :meth:`run`.
        """
        wait = pack_command("WAIT", replicas, max(1, round(self._timeout * 500)))
        connection = self._take()
        # WAIT covers the writes up to the last command of its own connection.
        confirmed = run_steps(self._send(connection, _PING, wait))
        self._idle.append(connection)
        if self._check_reply(confirmed) < replicas:
            raise StoreError(
                f"only {confirmed} of {replicas} replicas (throttle_replicas) of the server at "
                f"{self.url} confirmed a write"
            )

    def begin(self, *calls: Call) -> PendingCalls:
        """Send calls if a connection is open, without a wait; :meth:`finish` does the rest.

        Raises:
            StoreUnavailableError: the circuit breaker is open.
        """
        if self.breaker.is_open:
            self.breaker.check()
        connection = self._take_idle()
        if connection is not None:
            data = calls[0].packed if len(calls) == 1 else b"".join(call.packed for call in calls)
            try:
                connection.send_part(data)
            except OSError as error:
                self._fail(error, connection)
        return PendingCalls(calls, connection)

    def finish(self, pending: PendingCalls) -> list[Any]:
        """Return the reply or error of each call of :meth:`begin`, once. Raises as :meth:`run`."""
        connection, calls, replies = pending.connection, pending.calls, pending.replies
        if connection is None:
            return self.run_all(calls)
        try:
            while len(replies) < len(calls):
                replies.append(connection.read())
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error, connection)
        self._idle.append(connection)
        return [self._resolve(*pair) for pair in zip(calls, replies, strict=True)]

    def _conclude(self, connection: Connection, call: Call, reply: Any) -> Any:
        if isinstance(reply, hiredis.ReplyError):
            connection, reply = run_steps(self._recover(call, connection, reply))
        self._idle.append(connection)
        return self._check_reply(reply)

    def _take(self) -> Connection:
        return self._take_idle() or self._open()

    def _take_idle(self) -> Connection | None:
        """Return an open connection that serves no call; None if there is none."""
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        idle = self._idle
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread took it
                break
            if self._is_good(connection):
                return connection
            self._discard(connection)
        return None

    def _open(self) -> Connection:
        connection: Connection = run_steps(self._find())
        return connection

    async def arun(self, call: Call) -> Any:
        """:meth:`run` for asyncio."""
        if self.breaker.is_open:
            self.breaker.check()
        shared = self._by_loop.get(asyncio.get_running_loop())
        connection = None if shared is None else shared.connection
        if connection is None or not (self._is_current(connection) and connection.is_fresh()):
            connection = await self._share()
        try:
            reply = await connection.request(call.packed)
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error, connection)
        if isinstance(reply, hiredis.ReplyError):
            _, reply = await arun_steps(self._recover(call, connection, reply))
        return self._check_reply(reply)

    async def _share(self) -> AsyncConnection:
        """Return the connection of the running loop; open it if there is none that is good."""
        shared = self._shared_in(asyncio.get_running_loop())
        waited = shared.lock.locked()
        async with shared.lock:
            connection = shared.connection
            if connection is not None:
                if self._is_good(connection):
                    return connection
                shared.connection = None
                self._discard(connection)
            if waited and self.breaker.is_open:  # so will this call find no server
                self.breaker.check()
            opened: AsyncConnection = await arun_steps(self._find())
            shared.connection = opened
            return opened

    def _shared_in(self, loop: asyncio.AbstractEventLoop) -> _LoopConnection:
        if loop not in self._by_loop:
            # A connection refers to its loop, so a weak reference to the loop would not help.
            for closed in [one for one in list(self._by_loop) if one.is_closed()]:
                self._by_loop.pop(closed, None)
            self._by_loop[loop] = _LoopConnection()
        return self._by_loop[loop]

    # Rare cases, for blocking code and asyncio.

    def _is_good(self, connection: AnyConnection) -> bool:
        return self._is_current(connection) and (connection.is_fresh() or connection.is_open())

    def _is_current(self, connection: AnyConnection) -> bool:
        return connection.generation == self._servers.generation

    def _discard(self, connection: AnyConnection) -> None:
        """Close a connection that is not good: behind the same address there may be a replica."""
        connection.close()
        self._servers.start_generation(connection)

    def _find(self) -> Steps[Any]:
        try:
            return (yield from self._servers.find())
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error)

    def _send(self, connection: AnyConnection, *commands: bytes) -> Steps[Any]:
        try:
            return (yield send_step(connection, *commands))
        except BaseException as error:  # noqa: BLE001  # _fail raises it
            self._fail(error, connection)

    def _recover(self, call: Call, connection: Any, reply: Any) -> Steps[tuple[Any, Any]]:
        """Apply the remedies of error replies. Returns the last connection and the last reply.

        All of these errors are replied before the call is executed, so it may be sent again.
        """
        seen: set[str] = set()
        pauses = waits(self._timeout)
        while isinstance(reply, hiredis.ReplyError):
            error = ErrorReply(str(reply))
            moves = self._report(connection, error)
            if not moves and error.remedy not in (Remedy.LOAD, Remedy.RETRY):
                break
            if error.remedy is Remedy.RETRY or error.text in seen or len(seen) >= _MAX_RECOVERIES:
                seconds = next(pauses, None)
                if seconds is None:
                    self._servers.report_lost(connection)
                    break
                yield sleep_step(seconds)
            seen.add(error.text)
            if moves:
                connection.close()
                connection = yield Step(self._open, self._share)
            load = [_load(call)] if error.remedy is Remedy.LOAD else []
            reply = yield from self._send(connection, *load, call.packed)
        return connection, reply

    def _report(self, connection: AnyConnection, error: ErrorReply) -> bool:
        """Record that a server is not in charge. Returns whether :meth:`_find` may find another."""
        if error.remedy is Remedy.MOVED and has_hash_tag(self._prefix):
            node = connection.address.with_host(*error.redirect)
            return self._servers.report_moved(connection, node)
        return error.remedy is Remedy.ANOTHER_SERVER and self._servers.report_lost(connection)

    def _fail(self, error: BaseException, connection: AnyConnection | None = None) -> NoReturn:
        """Raise the error of a call that got no reply.

        Without a connection, or after a timeout, the circuit breaker opens: the next call would
        wait as long. Otherwise a connection broke in the middle of a call. It is unknown whether
        the call was executed, but the server may answer the next one.
        """
        if isinstance(connection, Connection):  # asyncio's skips the reply, if one comes
            connection.close()
        if isinstance(error, hiredis.HiredisError):
            reply = ErrorReply(str(error))
            raise StoreError(f"the server at {self.url} refused a connection: {reply}") from error
        if not isinstance(error, OSError):
            raise error
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot be reached: {error}")
        if connection is not None:
            self._servers.report_lost(connection)
        timed_out = isinstance(error, (TimeoutError, BlockingIOError))
        if connection is None or timed_out:
            self.breaker.trip(unavailable)
        if connection is not None and timed_out:
            for other in self.cluster:
                other.lose(connection.address, unavailable)
        raise unavailable from error

    def lose(self, node: Address, error: StoreUnavailableError) -> None:
        """Open the circuit breaker if the node that serves the keys does not reply to others."""
        shared = (one.connection for one in list(self._by_loop.values()))
        connections: tuple[AnyConnection | None, ...] = (*self._idle, *shared)
        for connection in connections:
            if connection is not None and connection.address == node:
                self._servers.report_lost(connection)
                self.breaker.trip(error)
                return

    def _check_reply(self, reply: Any) -> Any:
        """Return a reply, or raise its error."""
        if not isinstance(reply, hiredis.ReplyError):
            self.breaker.close()
            return reply
        error = ErrorReply(str(reply))
        if error.code in ("CROSSSLOT", "MOVED") and not has_hash_tag(self._prefix):
            raise StoreError(
                f"the server at {self.url} is a cluster: {_hash_tag_error(self._prefix)}"
            )
        if error.remedy in (Remedy.NONE, Remedy.FREE_MEMORY):
            self.breaker.close()
            raise StoreError(f"the server at {self.url} refused a call: {error}")
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot serve now: {error}")
        self.breaker.trip(unavailable)
        raise unavailable

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens new ones."""
        while self._idle:
            self._idle.pop().close()

    async def aclose(self) -> None:
        """Close the connection of the running event loop, once the calls under way have ended."""
        shared = self._by_loop.pop(asyncio.get_running_loop(), None)
        if shared is None:
            return
        async with shared.lock:  # a call under way may open it
            connection = shared.connection
        if connection is not None:
            await connection.aclose()


class Serverless(Store):
    """In place of a store: each call raises ConfigurationError with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(MEMORY_URL)
        self._servers = NoServers(reason)


def _load(call: Call) -> bytes:
    return pack_command("SCRIPT", "LOAD", call.script.source)


def _hash_tag_error(prefix: str) -> str:
    return (
        f"throttle_prefix {prefix!r} has no hash tag, which keeps all keys on one node; allowed: "
        f"such as {DEFAULT_PREFIX!r}"
    )
