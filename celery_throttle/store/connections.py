"""The connections of a store: it pools them itself, as the checks of a client's pool cost more.

A blocking connection serves one call at a time, and the calls of an event loop share one, so
threads, greenlets and asyncio tasks may share a store. Stores of one cluster share the blocking
connections to each node. After a fork the child opens connections of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import hiredis

from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.store.async_connection import AnyConnection, AsyncConnection
from celery_throttle.store.breaker import CircuitBreaker
from celery_throttle.store.connection import Connection
from celery_throttle.store.server_errors import ErrorReply
from celery_throttle.store.steps import Steps, arun_steps, run_steps
from celery_throttle.store.topology import Servers


@dataclass(slots=True, eq=False)
class _LoopConnection:
    """The connection of one event loop, and the lock under which it is opened."""

    connection: AsyncConnection | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Idle(NamedTuple):
    """The idle connections to one node, for a process and a generation of the servers.

    A value, as threads replace it while others read it.
    """

    pid: int
    generation: int
    node: str
    connections: deque[Connection]


class Connections:
    """The connections of one store, and its circuit breaker.

    What opens a connection raises StoreError as :meth:`fail`.

    Args:
        url: that of the servers, without secrets.
        servers: finds the server in charge.
        beside: the connections of a store of other keys in the same cluster; see :class:`.Store`.
    """

    def __init__(self, url: str, servers: Servers, beside: Connections | None = None) -> None:
        self.url = url
        self.servers = servers
        self.breaker = CircuitBreaker()
        #: Those of the stores of the same cluster, these included.
        self.cluster: list[Connections] = [] if beside is None else beside.cluster
        self.cluster.append(self)
        #: The open connections that serve no call, by process and node.
        self._all_idle: dict[tuple[int, str], deque[Connection]] = (
            {} if beside is None else beside._all_idle  # noqa: SLF001  # of this class
        )
        #: Those to the node that was called last; the node is "" if there was no call yet.
        self._idle = _Idle(-1, -1, "", deque())
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopConnection] = {}

    def take(self) -> Connection:
        """Return a connection that serves no call; opens one if there is none."""
        return self.take_idle() or self.open()

    def take_idle(self) -> Connection | None:
        """Return an open connection that serves no call; None if there is none."""
        idle = self._idle
        if idle.pid != os.getpid() or idle.generation != self.servers.generation:
            idle = self._follow_servers()
        while idle.connections:
            try:
                connection = idle.connections.pop()
            except IndexError:  # another thread took it
                break
            if self._is_good(connection):
                return connection
            self._discard(connection)
        return None

    def put(self, connection: Connection) -> None:
        """Take back a connection whose call has ended."""
        if connection.idle is self._idle.connections:
            connection.idle.append(connection)
        else:  # another thread has found that its node is not in charge
            connection.close()

    def leave(self, connection: AnyConnection) -> None:
        """Use a connection no more: its server is not in charge of the keys."""
        if isinstance(connection, Connection):
            self.put(connection)  # its server may be, of the keys of another store
            return
        shared = self._shared_in(asyncio.get_running_loop())
        if shared.connection is connection:  # no other call has left it
            shared.connection = None
        connection.close()

    def open(self) -> Connection:
        """Open a connection."""
        connection: Connection = run_steps(self._find())
        connection.idle = self._idle_at(str(connection.address))
        return connection

    def _idle_at(self, node: str) -> deque[Connection]:
        """Return the idle connections of this process to a node, to take from and to add to."""
        pid = os.getpid()
        for key in list(self._all_idle):  # other threads may add some
            if key[0] != pid:  # of the process before a fork
                self._all_idle.pop(key, None)
        return self._all_idle.setdefault((pid, node), deque())

    def _follow_servers(self) -> _Idle:
        """Return the idle connections to the node in charge, which are used from now on.

        Those to the node before are closed, unless another store of the cluster calls that node.
        """
        generation = self.servers.generation  # first: a change of the node comes before it
        node, before = self.servers.node, self._idle
        self._idle = idle = _Idle(os.getpid(), generation, node, self._idle_at(node))
        if all(one.servers.node != before.node for one in self.cluster):
            _close_all(before.connections)
        return idle

    async def share(self) -> AsyncConnection:
        """Return the connection of the running loop; open it if there is none that is good."""
        shared = self._shared_in(asyncio.get_running_loop())
        connection = shared.connection
        if connection is not None and self._is_current(connection) and connection.is_fresh():
            return connection  # the usual case
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

    def _is_good(self, connection: AnyConnection) -> bool:
        return self._is_current(connection) and (connection.is_fresh() or connection.is_open())

    def _is_current(self, connection: AnyConnection) -> bool:
        return connection.began >= self.servers.since

    def _discard(self, connection: AnyConnection) -> None:
        """Close a connection that is not good.

        If the server has closed it, there may be a replica behind the same address.
        """
        connection.close()
        if self._is_current(connection):
            for one in self._at(connection):
                one.servers.start_generation(connection)

    def _at(self, connection: AnyConnection) -> list[Connections]:
        """Return those of the cluster whose keys are on the node of a connection."""
        node = str(connection.address)
        return [one for one in self.cluster if one is self or one._idle.node == node]  # noqa: SLF001  # of this class

    def _find(self) -> Steps[Any]:
        began = time.monotonic()
        try:
            return (yield from self.servers.find())
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.fail(error, began=began)
        finally:  # another node may be the first to call after an error as well
            self._follow_servers()

    def fail(
        self,
        error: BaseException,
        connection: AnyConnection | None = None,
        *,
        began: float | None = None,
    ) -> NoReturn:
        """Raise the error of a call that got no reply.

        Without a connection, or after a timeout, the circuit breaker opens: the next call would
        wait as long. Otherwise a connection broke in the middle of a call. It is unknown whether
        the call was executed, but the server may answer the next one.

        ``began``: monotonic time of the call; by default, of the use of its connection.
        """
        if isinstance(connection, Connection):  # asyncio's skips the reply, if one comes
            connection.close()
        if isinstance(error, hiredis.HiredisError):
            reply = ErrorReply(str(error))
            raise StoreError(f"the server at {self.url} refused a connection: {reply}") from error
        if not isinstance(error, OSError):
            raise error
        reason = str(error).removesuffix(".")  # a log line goes on after it
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot be reached: {reason}")
        if began is None and connection is not None:
            began = connection.last_used
        unavailable.waited = 0.0 if began is None else time.monotonic() - began
        if connection is None:
            self.breaker.trip(unavailable)
            raise unavailable from error
        has_timed_out = isinstance(error, (TimeoutError, BlockingIOError))
        for one in self._at(connection):
            if has_timed_out or one is self:
                one.servers.report_lost(connection)
            else:
                one.servers.start_generation(connection)
            if has_timed_out:
                one.breaker.trip(unavailable)
        raise unavailable from error

    def close(self) -> None:
        """Close the idle connections of this process to the node; a later call opens new ones."""
        _close_all(self._follow_servers().connections)

    async def aclose(self) -> None:
        """Close the connection of the running event loop, once the calls under way have ended."""
        shared = self._by_loop.pop(asyncio.get_running_loop(), None)
        if shared is None:
            return
        async with shared.lock:  # a call under way may open it
            connection = shared.connection
        if connection is not None:
            await connection.aclose()


def _close_all(connections: deque[Connection]) -> None:
    with suppress(IndexError):  # there are no more; other threads may take some meanwhile
        while True:
            connections.pop().close()
