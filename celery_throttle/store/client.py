"""The store: runs each :class:`~celery_throttle.store.script.Call` on the limits server.

A call that gets no reply, or an error that the server replied before the call began, ends here: it
is sent again, or its error is raised. :mod:`celery_throttle.store.connections` has the connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import hiredis

from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError
from celery_throttle.store.async_connection import AnyConnection, AsyncConnection, send_step
from celery_throttle.store.connection import Connection
from celery_throttle.store.connections import Connections
from celery_throttle.store.keys import DEFAULT_PREFIX, has_hash_tag
from celery_throttle.store.pending import PendingCalls
from celery_throttle.store.script import Call, pack_command
from celery_throttle.store.server_errors import ErrorReply, Remedy
from celery_throttle.store.steps import (
    Step,
    Steps,
    arun_steps,
    run_steps,
    run_to_end,
    waits,
)
from celery_throttle.store.topology import Servers
from celery_throttle.store.url import is_cluster_url, read_url, safe_url

#: Error replies that one call recovers from at once: a script to load, redirections of nodes. A
#: call that gets more of them, or the same one again, waits between its attempts, for its
#: timeout at most.
_MAX_RECOVERIES = 5

_PING = pack_command("PING")

T = TypeVar("T")

#: Gets what has interrupted a caller.
Note = Callable[[BaseException], None]


class Store:
    """Runs scripts on a Redis or Valkey server.

    Args:
        url: the server, Sentinels or nodes; see :mod:`celery_throttle.store.url`.
        timeout: seconds for connecting and for each reply; default 1.
        prefix: the prefix of all keys; in a cluster it must have a hash tag.
        beside: a store of other keys in the same cluster. The stores share their connections to
            each node, and if a node does not reply to one of them, the others do not wait for it.
        servers: find the server in charge. Default: those that the URL names.

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
        servers: Servers | None = None,
    ) -> None:
        servers = servers or read_url(url, timeout)
        self.url = safe_url(url)  #: without secrets
        self._prefix = prefix
        if is_cluster_url(url) and not has_hash_tag(prefix):
            raise ConfigurationError(f"{self.url} is a cluster: {_hash_tag_error(prefix)}")
        shared = None if beside is None else beside.connections
        self.connections: Connections = Connections(self.url, servers, shared)
        self.breaker = self.connections.breaker

    @property
    def cluster(self) -> Hashable:
        """What is equal for all stores of the same cluster, and for no others."""
        return self.connections.cluster[0]

    @property
    def generation(self) -> int:
        """Increases when another server may be in charge, so connections must be replaced."""
        return self.connections.servers.generation

    @property
    def node(self) -> str:
        """The address of the server that is called first."""
        return self.connections.servers.node

    def connection(self) -> Connection:
        """Open a connection of its own, such as for subscriptions. Raises as :meth:`run`."""
        return self.connections.open()

    def run(self, call: Call, note: Note | None = None) -> Any:
        """Run a script and return its reply, with strings as bytes.

        ``note``: gets what interrupts the caller, such as what the handler of a signal raises. The
        reply is returned all the same.

        Raises:
            StoreUnavailableError: no server can be reached, replies in time, or can serve now.
            StoreError: the server replied with another error.
        """
        if self.breaker.is_open:
            self.breaker.check()
        return self.probe(call, Connection.read if note is None else partial(_read_to_end, note))

    def probe(self, call: Call, read: Callable[[Connection], Any] = Connection.read) -> Any:
        """Run a script even if the circuit breaker is open: a test whether the server is back."""
        connection = self.connections.take()
        try:
            connection.send(call.packed)
            reply = read(connection)
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.connections.fail(error, connection)
        if isinstance(reply, hiredis.ReplyError):
            connection, reply = run_steps(self._recover(call, connection, reply))
        self.connections.put(connection)
        is_usual = type(reply) is list and not self.breaker.is_open
        return reply if is_usual else self._check_reply(reply)

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one round trip, in order; return the reply or error of each.

        Raises:
            StoreError: as :meth:`run`; it is unknown which of the scripts were executed.
        """
        if len(calls) < 2 or self.breaker.is_open:  # noqa: PLR2004  # a single call
            return [self.run(call) for call in calls]
        connection = self.connections.take()
        try:
            connection.send(b"".join(call.packed for call in calls))
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.connections.fail(error, connection)
        return self.finish(PendingCalls(calls, connection))

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
        connection = self.connections.take()
        wait = pack_command("WAIT", replicas, round(connection.address.timeout * 500))
        # WAIT covers the writes up to the last command of its own connection.
        confirmed = run_steps(self._send(connection, _PING, wait))
        self.connections.put(connection)
        if self._check_reply(confirmed) < replicas:
            raise StoreError(
                f"only {confirmed} of {replicas} replicas (throttle_replicas) of the server at "
                f"{self.url} confirmed a write"
            )

    def begin(self, *calls: Call, may_wait: bool = False) -> PendingCalls:
        """Send calls if a connection is open, without a wait; :meth:`finish` does the rest.

        ``may_wait``: until the socket has taken all of them.

        Raises:
            StoreUnavailableError: the circuit breaker is open, or the server has been lost.
        """
        if self.breaker.is_open:
            self.breaker.check()
        connection = self.connections.take_idle()
        if connection is not None:
            data = calls[0].packed if len(calls) == 1 else b"".join(call.packed for call in calls)
            try:
                connection.send(data) if may_wait else connection.send_part(data)
            except OSError as error:
                self.connections.fail(error, connection)
        return PendingCalls(calls, connection)

    def finish(self, pending: PendingCalls) -> list[Any]:
        """Return the reply or error of each call of :meth:`begin`, once. Raises as :meth:`run`."""
        connection, calls, replies = pending.connection, pending.calls, pending.replies
        if connection is None:
            return self.run_all(calls)
        try:
            while len(replies) < len(calls):
                replies.append(connection.read())
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.connections.fail(error, connection)
        self.connections.put(connection)
        return [self._resolve(*pair) for pair in zip(calls, replies, strict=True)]

    async def arun(self, call: Call, note: Note | None = None) -> Any:
        """:meth:`run` for asyncio, where a cancellation interrupts the caller."""
        if self.breaker.is_open:
            self.breaker.check()
        connection = await self.connections.share()
        try:
            request = connection.request(call.packed)
            reply = await (request if note is None else _result_of(request, note))
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.connections.fail(error, connection)
        if isinstance(reply, hiredis.ReplyError):
            recovery = asyncio.ensure_future(arun_steps(self._recover(call, connection, reply)))
            _, reply = await (recovery if note is None else _result_of(recovery, note))
        return self._check_reply(reply)

    # Rare cases, for blocking code and asyncio.

    def _send(self, connection: AnyConnection, *commands: bytes) -> Steps[Any]:
        try:
            return (yield send_step(connection, *commands))
        except BaseException as error:  # noqa: BLE001  # fail raises it
            self.connections.fail(error, connection)

    def _recover(self, call: Call, connection: Any, reply: Any) -> Steps[tuple[Any, Any]]:
        """Apply the remedies of error replies. Returns the last connection and the last reply.

        All of these errors are replied before the call is executed, so it may be sent again.
        """
        seen: set[str] = set()
        pauses = waits(connection.address.timeout)
        while isinstance(reply, hiredis.ReplyError):
            error = ErrorReply(str(reply))
            moves = self._report(connection, error)
            if not moves and error.remedy not in (Remedy.LOAD, Remedy.RETRY):
                break
            if error.remedy is Remedy.RETRY or error.text in seen or len(seen) >= _MAX_RECOVERIES:
                seconds = next(pauses, None)
                if seconds is None:
                    self.connections.servers.report_lost(connection)
                    break
                yield Step(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            seen.add(error.text)
            if moves:
                self.connections.leave(connection)
            if moves or isinstance(connection, AsyncConnection):  # other calls may have left it
                connection = yield Step(self.connections.take, self.connections.share)
            commands = [call.packed]
            if error.remedy is Remedy.LOAD:
                commands.insert(0, pack_command("SCRIPT", "LOAD", call.script.source))
            reply = yield from self._send(connection, *commands)
        return connection, reply

    def _report(self, connection: AnyConnection, error: ErrorReply) -> bool:
        """Record that a server is not in charge. Returns whether there may be another one."""
        servers = self.connections.servers
        if error.remedy is Remedy.MOVED and has_hash_tag(self._prefix):
            return servers.report_moved(connection, connection.address.with_host(*error.redirect))
        return error.remedy is Remedy.ANOTHER_SERVER and servers.report_lost(connection)

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
        self.connections.close()

    async def aclose(self) -> None:
        """Close the connection of the running event loop, once the calls under way have ended."""
        await self.connections.aclose()


def _read_to_end(note: Note, connection: Connection) -> Any:
    """Read a reply although that is interrupted, once; see :meth:`Store.run`."""
    try:
        return connection.read()
    except (OSError, hiredis.HiredisError):
        raise
    except BaseException as interruption:
        with suppress(OSError, hiredis.HiredisError):
            reply = connection.read()
            note(interruption)
            return reply
        raise


async def _result_of(future: asyncio.Future[T], note: Note) -> T:
    """:func:`_read_to_end` for asyncio."""
    try:
        return await run_to_end(lambda: future)
    except asyncio.CancelledError as error:
        if future.cancelled():
            raise
        note(error)
        return future.result()


def _hash_tag_error(prefix: str) -> str:
    return (
        f"throttle_prefix {prefix!r} has no hash tag, which keeps all keys on one node; allowed: "
        f"such as {DEFAULT_PREFIX!r}"
    )
