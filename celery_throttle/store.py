"""The server that keeps the limits: runs one :class:`~celery_throttle.scripts.Call` at a time.

Both ends, :meth:`Store.run` and :meth:`Store.arun`, hold connections of their own instead of a
client's pool: the per-call checks of a pool cost more than a decision does. A connection belongs
to one call at a time, so threads, greenlets and asyncio tasks may share a store. After a fork the
child opens connections of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import hiredis
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from celery_throttle.breaker import Breaker
from celery_throttle.errors import ConfigurationError, StoreError, StoreUnavailableError, shown
from celery_throttle.scripts import Call, pack

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
#: Seconds for which an idle connection is taken to be open still: no server restarts in less.
_FRESH = 0.05

_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)


def safe_url(url: str) -> str:
    """The URL without what is secret in it, for messages and logs."""
    # By hand: a password that was not escaped makes every parser cut the URL in the wrong place.
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"


def is_store_url(url: str) -> bool:
    """Whether a URL names a server that can keep limits."""
    return url.partition("://")[0] in SCHEMES and "://" in url


@dataclass(frozen=True, slots=True)
class Begun:
    """A call on its way."""

    call: Call
    wire: _Wire


class _Wire:
    """A connection: redis-py makes it, and after that its socket is written to and read directly.

    What a client does besides for each call costs more than a decision does.
    """

    __slots__ = ("_connection", "_reader", "_socket", "_used")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket: Any = None
        self._reader = hiredis.Reader()
        self._used = 0.0

    def send(self, command: bytes) -> None:
        """Send, over a new connection if there is none or the server has closed it."""
        now = time.monotonic()
        if now - self._used > _FRESH and self._socket is not None and self._is_stale():
            self.close()
        self._used = now
        if self._socket is None:
            self._connection.connect()
            self._socket = self._connection._sock  # noqa: SLF001  # see the class
            _time_in_kernel(self._socket)
        self._socket.sendall(command)

    def read(self) -> Any:
        """One reply; an error that the server replied is given, not raised."""
        reader = self._reader
        reply = reader.gets()
        while reply is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
            reply = reader.gets()
        return reply

    # A server that restarted has closed what lay idle. Seen before anything is sent, that costs a
    # new connection; seen afterwards, nobody could tell whether the call was carried out.
    def _is_stale(self) -> bool:
        try:
            return bool(self._connection.can_read(0))
        except _UNREACHABLE:
            return True

    def close(self) -> None:
        self._connection.disconnect()
        self._socket, self._reader = None, hiredis.Reader()


def _time_in_kernel(sock: Any) -> None:
    """Let the kernel watch the timeout of a plain socket: Python's own costs a call each time."""
    timeout = sock.gettimeout()
    if type(sock) is not socket.socket or socket.socket.__module__ != "socket" or not timeout:
        return  # TLS and gevent have ways of their own
    value = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    sock.settimeout(None)


def _load(call: Call) -> bytes:
    return pack("SCRIPT", "LOAD", call.script.source)


async def _arevive(connection: Any) -> Any:
    try:
        # redis-py 8 has the first and warns of the second, older ones have the second.
        look = getattr(connection, "can_read", None) or connection.can_read_destructive
        stale = await look()
    except _UNREACHABLE:
        stale = True
    if stale:
        await connection.disconnect(nowait=True)
    return connection


class Store:
    """Runs scripts on one Redis or Valkey server.

    Args:
        url: ``redis://``, ``rediss://`` (TLS), ``unix://`` or ``valkey://``.
        timeout: seconds for connecting and for each reply; default 1.

    Raises:
        ConfigurationError: the URL is of no server that can keep limits.
    """

    def __init__(self, url: str, *, timeout: float = 1.0) -> None:
        if not isinstance(url, str) or not is_store_url(url):
            named = safe_url(url) if isinstance(url, str) else url
            raise ConfigurationError(
                f"{shown(named)} is no server that can keep limits: "
                f"the URL must start with one of {', '.join(f'{s}://' for s in SCHEMES)}"
            )
        self.url = safe_url(url)
        self._url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
        # No retries by the client: its default stalls a call for seconds when the server is down.
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        self.breaker = Breaker()
        self._idle: deque[_Wire] = deque()
        self._pid = os.getpid()
        self._pool: redis.ConnectionPool | None = None
        self._aidle: dict[asyncio.AbstractEventLoop, tuple[Any, deque[Any]]] = {}
        try:
            self.connection()
        except (TypeError, ValueError) as error:
            # What redis-py says quotes the URL: also a password that was not escaped.
            secret = "@" in url
            why = "are user and password percent-encoded?" if secret else error
            raise ConfigurationError(f"the URL {self.url!r} cannot be used: {why}") from None

    def connection(self) -> Any:
        """A new connection, for one's own use (subscriptions)."""
        if self._pool is None:
            self._pool = redis.ConnectionPool.from_url(self._url, **self._options)
        return self._pool.make_connection()

    def run(self, call: Call) -> Any:
        """Run a script and give its reply, texts as bytes.

        Raises:
            StoreUnavailableError: the server cannot be reached or does not answer in time.
            StoreError: the server answered with an error.
        """
        if self.breaker.is_open:
            self.breaker.check()
        return self._run(call)

    def probe(self, call: Call) -> Any:
        """:meth:`run`, whether or not the server is taken not to answer: to find out."""
        return self._run(call)

    def _run(self, call: Call) -> Any:
        wire = self._wire()
        try:
            wire.send(call.packed)
            reply = wire.read()
        except BaseException as error:
            raise self._failed(wire, error) from error
        if type(reply) is not list or self.breaker.is_open:
            return self._done(wire, call, reply)
        self._idle.append(wire)  # all there is to do for most
        return reply

    def begin(self, call: Call) -> Begun:
        """Send a script's call; :meth:`finish` waits for the reply. Raises as :meth:`run`."""
        if self.breaker.is_open:
            self.breaker.check()
        wire = self._wire()
        try:
            wire.send(call.packed)
        except BaseException as error:
            raise self._failed(wire, error) from error
        return Begun(call, wire)

    def finish(self, begun: Begun) -> Any:
        """Give the reply to a call that was begun, once. Raises as :meth:`run`."""
        try:
            reply = begun.wire.read()
        except BaseException as error:
            raise self._failed(begun.wire, error) from error
        return self._done(begun.wire, begun.call, reply)

    def _wire(self) -> _Wire:
        if self._pid != os.getpid():
            self._idle, self._pid, self._pool = deque(), os.getpid(), None
        try:
            return self._idle.pop()
        except IndexError:
            return _Wire(self.connection())

    def _failed(self, wire: _Wire, error: BaseException) -> BaseException:
        wire.close()
        return self._translate(error, cut=isinstance(error, ConnectionError))

    def _done(self, wire: _Wire, call: Call, reply: Any) -> Any:
        self.breaker.close()
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith("NOSCRIPT"):
                reply = self._load_and_run(wire, call)
            if isinstance(reply, hiredis.ReplyError):
                self._idle.append(wire)
                raise self._refused(reply)
        self._idle.append(wire)
        return reply

    def _load_and_run(self, wire: _Wire, call: Call) -> Any:
        try:
            wire.send(_load(call) + call.packed)
            wire.read()
            return wire.read()
        except BaseException as error:
            raise self._failed(wire, error) from error

    async def arun(self, call: Call) -> Any:
        """The same as :meth:`run` for asyncio."""
        if self.breaker.is_open:
            self.breaker.check()
        loop = asyncio.get_running_loop()
        if loop not in self._aidle:
            # A connection holds its loop, so weak references would never let go of either.
            for ended in [one for one in self._aidle if one.is_closed()]:
                del self._aidle[ended]
            pool = redis.asyncio.ConnectionPool.from_url(self._url, **self._async_options())
            self._aidle[loop] = pool, deque()
        pool, idle = self._aidle[loop]
        connection = await _arevive(idle.pop()) if idle else pool.make_connection()
        was_connected = connection.is_connected
        try:
            reply = await self._aexchange(connection, call)
        except BaseException as error:
            if isinstance(error, ResponseError):
                idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
            cut = was_connected and isinstance(error, RedisConnectionError)
            raise self._translate(error, cut=cut) from error
        self.breaker.close()
        idle.append(connection)
        return reply

    def _async_options(self) -> dict[str, Any]:
        return self._options | {"retry": redis.asyncio.retry.Retry(NoBackoff(), 0)}

    async def _aexchange(self, connection: Any, call: Call) -> Any:
        packed = call.packed
        try:
            await connection.send_packed_command([packed], check_health=False)
            return await connection.read_response()
        except NoScriptError:
            await connection.send_packed_command([_load(call), packed], check_health=False)
            await connection.read_response()
            return await connection.read_response()

    def _translate(self, error: BaseException, *, cut: bool) -> BaseException:
        if not isinstance(error, _UNREACHABLE):
            return self._refused(error) if isinstance(error, RedisError) else error
        unavailable = StoreUnavailableError(f"the server at {self.url} cannot be reached: {error}")
        if not cut:
            self.breaker.trip(unavailable)
        return unavailable

    def _refused(self, error: Exception) -> StoreError:
        return StoreError(f"the server at {self.url} refused a call: {error}")

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens new ones."""
        while self._idle:
            self._idle.pop().close()

    async def aclose(self) -> None:
        """Close the idle connections of the running event loop."""
        _, idle = self._aidle.pop(asyncio.get_running_loop(), (None, deque()))
        while idle:
            await idle.pop().disconnect()
