"""One connection to one server, for code that waits and for asyncio.

redis-py connects (names, TLS, passwords). After that the socket is written to and read directly:
what a client does besides for each call costs more than a decision does.

Where no reply comes, an ``OSError`` is raised. An error that the server replied is given, not
raised; only when one connects it is raised, as ``hiredis.ReplyError``.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.store.address import Address, make_connection, plain_errors

#: Seconds for which an idle connection is taken to be open still: no server restarts in less.
_FRESH = 0.05

_READ = 65536

_SILENT = "no reply in time"
_CLOSED = "the server closed the connection"


class Wire:
    """A connection for code that waits; used by one call at a time.

    Attributes:
        address: where it goes.
        generation: set by who opened it, see :class:`~celery_throttle.store.topology.Servers`.
    """

    __slots__ = ("_connection", "_reader", "_socket", "_used", "address", "generation")

    def __init__(self, address: Address, connection: Any) -> None:
        self.address = address
        self.generation = 0
        self._connection = connection
        self._socket: Any = connection._sock  # noqa: SLF001  # see the module
        self._reader = hiredis.Reader()
        self._used = time.monotonic()
        _time_in_kernel(self._socket)

    @classmethod
    def open(cls, address: Address) -> Wire:
        """Connect."""
        connection = make_connection(address)
        with plain_errors():
            connection.connect()
        return cls(address, connection)

    def is_fresh(self) -> bool:
        """Whether it was in use a moment ago, as it is now again."""
        used, self._used = self._used, time.monotonic()
        return self._used - used <= _FRESH

    def is_open(self) -> bool:
        """Whether it can be used still. A server that restarted has closed what lay idle.

        Seen before anything is sent, that costs a new connection; seen afterwards, nobody could
        tell whether the call was carried out.
        """
        try:
            return not self._connection.can_read(0)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            return False

    def send(self, data: bytes) -> None:
        """Send commands."""
        try:
            self._socket.sendall(data)
        except BlockingIOError:  # how the kernel says that the time is up
            raise TimeoutError(_SILENT) from None

    def read(self) -> Any:
        """One reply."""
        reader = self._reader
        reply = reader.gets()
        while reply is False:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:  # as above
                raise TimeoutError(_SILENT) from None
            if not data:
                raise ConnectionResetError(_CLOSED)
            reader.feed(data)
            reply = reader.gets()
        return reply

    def close(self) -> None:
        """Close it."""
        self._connection.disconnect()

    def release(self) -> Any:
        """Give redis-py's connection to someone who goes on with it alone."""
        self._socket.settimeout(self._connection.socket_timeout)
        return self._connection


class AsyncWire:
    """A connection for one event loop; otherwise as :class:`Wire`."""

    __slots__ = (
        "_loop",
        "_reader",
        "_stream",
        "_timeout",
        "_used",
        "_writer",
        "address",
        "generation",
    )

    def __init__(self, address: Address, connection: Any) -> None:
        self.address = address
        self.generation = 0
        self._loop = asyncio.get_running_loop()
        self._timeout = connection.socket_timeout
        self._used = time.monotonic()
        self._reader = hiredis.Reader()
        # Taken away from redis-py, which would close them with its connection.
        self._stream, self._writer = connection._reader, connection._writer  # noqa: SLF001  # see the module
        connection._reader = connection._writer = None  # noqa: SLF001  # see the module

    @classmethod
    async def open(cls, address: Address) -> AsyncWire:
        """Connect."""
        connection = make_connection(address, asynchronous=True)
        with plain_errors():
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        return cls(address, connection)

    def is_fresh(self) -> bool:
        """See :meth:`Wire.is_fresh`. If its end has come meanwhile, the loop has seen that."""
        used, self._used = self._used, time.monotonic()
        ended = self._stream.at_eof() or self._writer.is_closing()
        return self._used - used <= _FRESH and not ended

    def is_open(self) -> bool:
        """See :meth:`Wire.is_open`. The loop need not have turned since the server closed it."""
        ended = self._stream.at_eof() or self._writer.is_closing()
        return not (ended or _has_input(self._writer.get_extra_info("socket")))

    def send(self, data: bytes) -> None:
        """Send commands. Nobody waits until they are gone: the reply is waited for."""
        self._writer.write(data)

    async def read(self) -> Any:
        """One reply."""
        reader = self._reader
        reply = reader.gets()
        if reply is False:
            alarm = self._loop.call_later(self._timeout, self._give_up)
            try:
                while reply is False:
                    data = await self._stream.read(_READ)
                    if not data:
                        raise ConnectionResetError(_CLOSED)
                    reader.feed(data)
                    reply = reader.gets()
            finally:
                alarm.cancel()
        return reply

    # Cheaper than asyncio's timeouts.
    def _give_up(self) -> None:
        self._stream.set_exception(TimeoutError(_SILENT))

    def close(self) -> None:
        """Close it."""
        with suppress(RuntimeError):  # its loop has been closed; the socket goes with the garbage
            self._writer.close()

    async def aclose(self) -> None:
        """Close it, and wait until that is done."""
        self.close()
        with suppress(OSError):  # gone in any case
            await self._writer.wait_closed()


AnyWire = Wire | AsyncWire


def _has_input(sock: Any) -> bool:
    """Whether there is something to read, the end included."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _time_in_kernel(sock: Any) -> None:
    """Let the kernel watch the timeout of a plain socket: Python's own costs a call each time."""
    timeout = sock.gettimeout()
    if type(sock) is not socket.socket or socket.socket.__module__ != "socket" or not timeout:
        return  # TLS and gevent have ways of their own
    value = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    sock.settimeout(None)
