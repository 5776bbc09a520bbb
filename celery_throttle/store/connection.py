"""Addresses of servers, and connections to them, blocking or for asyncio.

redis-py connects (host names, TLS, passwords). After that the socket is written to and read
directly: the overhead of a client for each call exceeds the cost of a decision.

If no reply arrives, an ``OSError`` is raised. An error reply is returned, not raised; only while
connecting it is raised, as ``hiredis.ReplyError``.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.store.steps import Step

#: Seconds for which an idle connection need not be tested: no server restarts in less.
_FRESH_SECONDS = 0.05

_READ_SIZE = 65536

_TIMED_OUT = "no reply in time"
_CLOSED = "the server closed the connection"

_CONNECTIONS = {
    "tcp": redis.Connection,
    "tls": redis.SSLConnection,
    "unix": redis.UnixDomainSocketConnection,
}
_ASYNC_CONNECTIONS = {
    "tcp": redis.asyncio.Connection,
    "tls": redis.asyncio.SSLConnection,
    "unix": redis.asyncio.UnixDomainSocketConnection,
}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. The options are those of redis-py's connections, with passwords."""

    kind: str  #: ``tcp``, ``tls`` or ``unix``
    options: Mapping[str, Any] = field(repr=False)

    def with_host(self, host: str, port: int) -> Address:
        """Return the address of another server, with the same options; no host means this one."""
        kind = "tcp" if self.kind == "unix" else self.kind
        options = {name: value for name, value in self.options.items() if name != "path"}
        return Address(kind, options | {"host": host or self.host, "port": port})

    @property
    def host(self) -> str:
        """The host; ``localhost`` for a Unix socket."""
        return str(self.options.get("host", "localhost"))

    def __str__(self) -> str:
        path = self.options.get("path")
        return str(path or f"{self.host}:{self.options.get('port', 6379)}")


def make_connection(address: Address, *, asynchronous: bool = False) -> Any:
    """Make a connection of redis-py, without connecting.

    Raises:
        TypeError, ValueError, RedisError: an option is wrong.
    """
    kinds: Mapping[str, Any] = _ASYNC_CONNECTIONS if asynchronous else _CONNECTIONS
    # No retries by the client: its default stalls a call for seconds when the server is down.
    retry = AsyncRetry(NoBackoff(), 0) if asynchronous else Retry(NoBackoff(), 0)
    return kinds[address.kind](**address.options, retry=retry)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of redis-py while it connects to ``OSError`` or ``hiredis.ReplyError``."""
    try:
        yield
    except RedisTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except RedisError as error:
        # To redis-py, a wrong password is a ConnectionError.
        if isinstance(error, AuthenticationError) or not isinstance(error, RedisConnectionError):
            raise hiredis.ReplyError(str(error)) from error
        raise ConnectionError(str(error)) from error


class Connection:
    """A blocking connection, for one call at a time.

    ``generation``: see :class:`~celery_throttle.store.topology.Servers`, which sets it.
    """

    __slots__ = ("_connection", "_last_used", "_reader", "_socket", "address", "generation")

    def __init__(self, address: Address, connection: Any) -> None:
        self.address = address
        self.generation = 0
        self._connection = connection
        self._socket: Any = connection._sock  # noqa: SLF001  # see the module docstring
        self._reader = hiredis.Reader()
        self._last_used = time.monotonic()
        _set_kernel_timeout(self._socket)

    @classmethod
    def open(cls, address: Address) -> Connection:
        """Connect to a server."""
        connection = make_connection(address)
        with _translate_errors():
            connection.connect()
        return cls(address, connection)

    def is_fresh(self) -> bool:
        """Whether it was used a moment ago. Records a use now."""
        last, self._last_used = self._last_used, time.monotonic()
        return self._last_used - last <= _FRESH_SECONDS

    def is_open(self) -> bool:
        """Whether the server has not closed it. A restart closes idle connections.

        A test before a call costs a new connection at most; an error in the middle of a call leaves
        open whether the call was executed.
        """
        try:
            return not self._connection.can_read(0)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            return False

    def send(self, data: bytes) -> None:
        """Send commands."""
        try:
            self._socket.sendall(data)
        except BlockingIOError:  # the kernel reports its timeout so
            raise TimeoutError(_TIMED_OUT) from None

    def read(self) -> Any:
        """Read one reply."""
        reader = self._reader
        reply = reader.gets()
        while reply is False:
            try:
                data = self._socket.recv(_READ_SIZE)
            except BlockingIOError:  # as above
                raise TimeoutError(_TIMED_OUT) from None
            if not data:
                raise ConnectionResetError(_CLOSED)
            reader.feed(data)
            reply = reader.gets()
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def release(self) -> Any:
        """Return the connection of redis-py, which this object then no longer uses."""
        self._socket.settimeout(self._connection.socket_timeout)
        return self._connection


class AsyncConnection:
    """A connection for one event loop; otherwise as :class:`Connection`."""

    __slots__ = (
        "_last_used",
        "_loop",
        "_reader",
        "_stream",
        "_timeout",
        "_writer",
        "address",
        "generation",
    )

    def __init__(self, address: Address, connection: Any) -> None:
        self.address = address
        self.generation = 0
        self._loop = asyncio.get_running_loop()
        self._timeout = connection.socket_timeout
        self._last_used = time.monotonic()
        self._reader = hiredis.Reader()
        # Remove them from redis-py, which would close them with its connection.
        self._stream, self._writer = connection._reader, connection._writer  # noqa: SLF001  # see the module docstring
        connection._reader = connection._writer = None  # noqa: SLF001  # see the module docstring

    @classmethod
    async def open(cls, address: Address) -> AsyncConnection:
        """Connect to a server."""
        connection = make_connection(address, asynchronous=True)
        with _translate_errors():
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        return cls(address, connection)

    def is_fresh(self) -> bool:
        """See :meth:`Connection.is_fresh`; False once the loop has seen the end of the stream."""
        last, self._last_used = self._last_used, time.monotonic()
        ended = self._stream.at_eof() or self._writer.is_closing()
        return self._last_used - last <= _FRESH_SECONDS and not ended

    def is_open(self) -> bool:
        """See :meth:`Connection.is_open`. The loop may not have seen the end of the stream yet."""
        ended = self._stream.at_eof() or self._writer.is_closing()
        return not (ended or _has_input(self._writer.get_extra_info("socket")))

    def send(self, data: bytes) -> None:
        """Send commands, without waiting until they are written: the caller awaits the reply."""
        self._writer.write(data)

    async def read(self) -> Any:
        """Read one reply."""
        reader = self._reader
        reply = reader.gets()
        if reply is False:
            alarm = self._loop.call_later(self._timeout, self._time_out)
            try:
                while reply is False:
                    data = await self._stream.read(_READ_SIZE)
                    if not data:
                        raise ConnectionResetError(_CLOSED)
                    reader.feed(data)
                    reply = reader.gets()
            finally:
                alarm.cancel()
        return reply

    # Cheaper than asyncio's timeouts.
    def _time_out(self) -> None:
        self._stream.set_exception(TimeoutError(_TIMED_OUT))

    def close(self) -> None:
        """Close the connection."""
        with suppress(RuntimeError):  # the loop is closed; garbage collection closes the socket
            self._writer.close()

    async def aclose(self) -> None:
        """Close the connection and wait until it is closed."""
        self.close()
        with suppress(OSError):  # it is closed in any case
            await self._writer.wait_closed()


AnyConnection = Connection | AsyncConnection


def _has_input(sock: Any) -> bool:
    """Whether there are data to read, or the end of the stream."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _set_kernel_timeout(sock: Any) -> None:
    """Move the timeout of a plain socket to the kernel: Python's own costs a system call."""
    timeout = sock.gettimeout()
    if type(sock) is not socket.socket or socket.socket.__module__ != "socket" or not timeout:
        return  # TLS and gevent have timeouts of their own
    value = struct.pack("@ll", int(timeout), int(timeout % 1 * MICROSECONDS))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    sock.settimeout(None)


def connect_step(address: Address) -> Step:
    """Return the step whose result is a new connection."""
    return Step(partial(Connection.open, address), partial(AsyncConnection.open, address))


def send_step(connection: Any, *commands: bytes) -> Step:
    """Return the step that sends packed commands; its result is the reply to the last one.

    The connection is a :class:`Connection`, or for asyncio an :class:`AsyncConnection`.
    """

    def run() -> Any:
        connection.send(b"".join(commands))
        return [connection.read() for _ in commands][-1]

    async def arun() -> Any:
        connection.send(b"".join(commands))
        return [await connection.read() for _ in commands][-1]

    return Step(run, arun)
