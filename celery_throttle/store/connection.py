"""Addresses of servers, and blocking connections to them.

redis-py connects (host names, TLS, passwords). After that the socket is written to and read
directly: the overhead of a client for each call exceeds the cost of a decision.

If no reply arrives, an ``OSError`` is raised. An error reply is returned, not raised; only while
connecting it is raised, as ``hiredis.ReplyError``. Connections for asyncio, in
:mod:`celery_throttle.store.async_connection`, do the same.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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

#: Seconds for which an idle connection need not be tested: no server restarts in less.
FRESH_SECONDS = 0.05

#: How long (s) a read waits in the kernel at a time. A worker's loop then does something else.
TICK_SECONDS = 0.05

_READ_SIZE = 65536

_MILLISECONDS = 1000  # in a second

TIMED_OUT = "no reply in time"
CLOSED = "the server closed the connection"

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

    @property
    def timeout(self) -> float:
        """Seconds for each reply."""
        return float(self.options["socket_timeout"])

    def __str__(self) -> str:
        path = self.options.get("path")
        return str(path or f"{self.host}:{self.options.get('port', 6379)}")


def make_connection(address: Address, *, asynchronous: bool = False, **options: Any) -> Any:
    """Make a connection of redis-py, without connecting. ``options`` replace those of the address.

    Raises:
        TypeError, ValueError, RedisError: an option is wrong.
    """
    kinds: Mapping[str, Any] = _ASYNC_CONNECTIONS if asynchronous else _CONNECTIONS
    # No retries by the client: its default stalls a call for seconds when the server is down.
    retry = AsyncRetry(NoBackoff(), 0) if asynchronous else Retry(NoBackoff(), 0)
    return kinds[address.kind](**{**address.options, **options, "retry": retry})


@contextmanager
def translate_errors() -> Iterator[None]:
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

    Attributes:
        began: monotonic time at which it began to be opened.
        idle: where it is while it serves no call.
        last_used: monotonic time at which its last call began.
    """

    idle: deque[Connection]

    def __init__(self, address: Address, connection: Any, began: float) -> None:
        self.address = address
        self.began = began
        self._connection = connection
        self._socket: Any = connection._sock  # noqa: SLF001  # see the module docstring
        self._reader = hiredis.Reader()
        self.last_used = time.monotonic()
        self._unsent = b""
        self._is_green = _is_green()
        self._poll: Any = None
        #: How many timeouts of the kernel make that of the connection; 0 if Python waits instead.
        self._ticks = _set_kernel_timeout(self._socket)

    @classmethod
    def open(cls, address: Address) -> Connection:
        """Connect to a server."""
        began, connection = time.monotonic(), make_connection(address)
        with translate_errors():
            connection.connect()
        return cls(address, connection, began)

    def is_fresh(self) -> bool:
        """Whether it was used a moment ago. Records a use now."""
        last, self.last_used = self.last_used, time.monotonic()
        return self.last_used - last <= FRESH_SECONDS

    def is_open(self) -> bool:
        """Whether the server has not closed it. A restart closes idle connections.

        A test before a call costs a new connection at most; an error in the middle of a call leaves
        open whether the call was executed.
        """
        try:
            return not self._connection.can_read(0)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            return False
        finally:
            if self._ticks:
                self._socket.settimeout(None)  # redis-py may have set its own

    def send(self, data: bytes) -> None:
        """Send commands."""
        try:
            self._socket.sendall(data)
        except BlockingIOError:  # the kernel reports its timeout so
            raise TimeoutError(TIMED_OUT) from None

    def send_part(self, data: bytes) -> None:
        """Send what the socket takes without a wait; :meth:`read` sends the rest."""
        if self._is_green or type(self._socket) is not socket.socket:
            self.send(data)  # only a greenlet waits; TLS cannot send a part
            return
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]

    def read_within(self, seconds: float) -> Any:
        """Read one reply; False if it is not complete in time, and :meth:`read` may wait longer.

        Plain sockets wait for whole :data:`TICK_SECONDS`, unless ``seconds`` is 0 or less. With
        gevent and eventlet, where only a greenlet waits, this is :meth:`read`.
        """
        if self._is_green:
            return self.read()
        if not self._ticks:
            return self._read_available(seconds)
        reply = self._reader.gets()
        while reply is False and not self._unsent:
            if seconds <= 0 and not self._is_readable(0):
                break
            try:
                reply = self._receive()
            except BlockingIOError:  # the kernel reports its timeout so
                seconds -= TICK_SECONDS
                if seconds <= 0:
                    break
        return reply

    def _read_available(self, seconds: float) -> Any:
        """See :meth:`read_within`: of a TLS record, only a part may have arrived."""
        sock, timeout = self._socket, self._socket.gettimeout()
        until = time.monotonic() + seconds
        reply = self._reader.gets()
        while reply is False and self._is_readable(until - time.monotonic()):
            sock.settimeout(0)
            try:
                reply = self._receive()
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            finally:
                sock.settimeout(timeout)
        return reply

    def _is_readable(self, seconds: float) -> bool:
        """Wait until there is something to read; return whether there is, within the seconds."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        if type(self._socket) is ssl.SSLSocket and self._socket.pending():
            return True
        return bool(self._poll.poll(max(0.0, seconds) * _MILLISECONDS))

    def read(self) -> Any:
        """Read one reply."""
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self.send(unsent)
        ticks, reply = self._ticks, self._reader.gets()
        while reply is False:
            try:
                reply = self._receive()
            except BlockingIOError:  # noqa: PERF203  # as above
                ticks -= 1
                if ticks <= 0:
                    raise TimeoutError(TIMED_OUT) from None
        return reply

    def _receive(self) -> Any:
        """Read what the socket has; return a reply, or False if none is complete yet."""
        data = self._socket.recv(_READ_SIZE)
        if not data:
            raise ConnectionResetError(CLOSED)
        self._reader.feed(data)
        return self._reader.gets()

    def read_all(self) -> list[Any]:
        """Read the replies that have arrived, of a subscription; wait for one at least."""
        replies = [self.read()]
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def fileno(self) -> int:
        """Return the file descriptor, for ``selectors``."""
        return int(self._socket.fileno())


def _is_green() -> bool:
    """Return whether gevent or eventlet has replaced the sockets of this process."""
    return socket.socket.__module__ != "socket"


def _set_kernel_timeout(sock: Any) -> int:
    """Move the timeout of a plain socket to the kernel: Python's own costs a system call.

    Returns the number of ticks, after each of which the kernel lets a read return; 0 if the socket
    has Python's timeout.
    """
    timeout = sock.gettimeout()
    if type(sock) is not socket.socket or _is_green() or not timeout:
        return 0  # TLS and gevent have timeouts of their own
    tick = min(timeout, TICK_SECONDS)
    for option, seconds in ((socket.SO_RCVTIMEO, tick), (socket.SO_SNDTIMEO, timeout)):
        value = struct.pack("@ll", int(seconds), int(seconds % 1 * MICROSECONDS))
        sock.setsockopt(socket.SOL_SOCKET, option, value)
    sock.settimeout(None)
    ticks: int = math.ceil(timeout / tick)
    return ticks
