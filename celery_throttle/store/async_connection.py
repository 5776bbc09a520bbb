"""Connections for asyncio, and the steps that use a connection of either kind.

The calls of an event loop share one connection. The server runs scripts one after the other in any
case, and a loop that opened a connection for each of its calls could open hundreds at once.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import hiredis

from celery_throttle.errors import ConfigurationError
from celery_throttle.store.connection import (
    CLOSED,
    FRESH_SECONDS,
    TIMED_OUT,
    Address,
    Connection,
    make_connection,
    translate_errors,
)
from celery_throttle.store.steps import Step

#: A timeout passes in this many ticks of the loop. However late a tick is, it counts as one, and
#: the loop reads what has arrived between two of them: time in which the loop is busy with other
#: work is not taken for silence of the server.
_TICKS = 10


class AsyncConnection(asyncio.Protocol):
    """A connection for the calls of one event loop, which share it.

    Replies come in the order of the commands. If a call is cancelled, its reply is skipped when it
    comes, so the other calls get theirs.

    ``began``: monotonic time at which it began to be opened; ``last_used``: that of its last reply.
    """

    def __init__(self, address: Address, connection: Any, began: float) -> None:
        self.address = address
        self.began = began
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        # The commands without a reply, in order; None for those whose reply nobody reads.
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        self.last_used = time.monotonic()
        self._is_closing = False
        self._ended = asyncio.Event()
        self._seconds_per_tick = address.timeout / _TICKS
        self._silent_ticks = 0  # since the last data, or the first command without a reply
        self._tick_handle: asyncio.TimerHandle | None = None
        # Remove them from redis-py, which would close them with its connection. The writer would
        # close its transport if nothing referred to it.
        stream, self._writer = connection._reader, connection._writer  # noqa: SLF001  # see connection.py
        connection._reader = connection._writer = None  # noqa: SLF001  # see connection.py
        self._transport = self._writer.transport
        self._transport.set_protocol(self)
        if stream.at_eof():
            self.connection_lost(None)

    @classmethod
    async def open(cls, address: Address) -> AsyncConnection:
        """Connect to a server."""
        connecting = asyncio.ensure_future(cls._connect(address))
        seconds = address.options["socket_connect_timeout"] / _TICKS
        try:
            for _ in range(_TICKS):
                await asyncio.wait((connecting,), timeout=seconds)
                if connecting.done():
                    return connecting.result()
        except BaseException:
            _abandon(connecting)
            raise
        _abandon(connecting)
        raise TimeoutError(TIMED_OUT)

    @classmethod
    async def _connect(cls, address: Address) -> AsyncConnection:
        # redis-py's own timeouts count the time in which the loop is busy.
        timeouts = {"socket_timeout": None, "socket_connect_timeout": None}
        began = time.monotonic()
        try:
            connection = make_connection(address, asynchronous=True, **timeouts)
        except TypeError as error:  # the options are right for blocking connections: see url.py
            raise ConfigurationError(
                f"asyncio cannot use the URL of {address}, as redis-py has one of its options for "
                f"blocking connections only: {error}; leave the option out"
            ) from None
        with translate_errors():
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        return cls(address, connection, began)

    def is_fresh(self) -> bool:
        """Whether it is in use, or was a moment ago, and the loop has not seen its end."""
        if self._is_closing or self._transport.is_closing():
            return False
        return bool(self._waiting) or time.monotonic() - self.last_used <= FRESH_SECONDS

    def is_open(self) -> bool:
        """See :meth:`Connection.is_open`. The loop may not have seen the end of the stream yet."""
        if self._is_closing or self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def request(self, data: bytes, commands: int = 1) -> asyncio.Future[Any]:
        """Send commands. Returns the future reply to the last one."""
        if self._transport.is_closing():
            raise ConnectionResetError(CLOSED)
        if not self._waiting:
            self._silent_ticks = 0
        if self._tick_handle is None:
            self._tick_handle = self._loop.call_later(self._seconds_per_tick, self._tick)
        reply = self._loop.create_future()
        self._waiting.extend([None] * (commands - 1))
        self._waiting.append(reply)
        self._transport.write(data)
        return reply

    def data_received(self, data: bytes) -> None:
        """Give each reply to its call. The transport calls this."""
        self._silent_ticks = 0
        self.last_used = time.monotonic()
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                future = waiting.popleft()
                if future is not None and not future.done():  # done: the call is cancelled
                    future.set_result(reply)
        except hiredis.ProtocolError as error:
            self._break(error)
        except IndexError:
            self._break(ConnectionResetError("the server sent a reply to no command"))
        if self._is_closing and not waiting:
            # A call whose script the server has lost sends it before that.
            self._loop.call_soon(self._close_if_idle)

    def _tick(self) -> None:
        self._tick_handle = None
        if not self._waiting:
            return
        self._silent_ticks += 1
        if self._silent_ticks > _TICKS:  # the first one may have come early
            self._break(TimeoutError(TIMED_OUT))
        else:
            self._tick_handle = self._loop.call_later(self._seconds_per_tick, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all calls without a reply. The transport calls this."""
        self._break(ConnectionResetError(CLOSED if exc is None else str(exc)))
        self._ended.set()

    def _break(self, error: Exception) -> None:
        """End the connection: the calls without a reply fail."""
        self._transport.abort()
        while self._waiting:
            future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_exception(type(error)(*error.args))  # each has a traceback of its own

    def close(self) -> None:
        """Close the connection once the calls under way have their replies."""
        self._is_closing = True
        with suppress(RuntimeError):  # the loop is closed; garbage collection closes the socket
            self._loop.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._waiting:
            self._transport.close()

    async def aclose(self) -> None:
        """Close the connection and wait until it is closed."""
        self.close()
        await self._ended.wait()


AnyConnection = Connection | AsyncConnection


def _abandon(connecting: asyncio.Task[AsyncConnection]) -> None:
    """Cancel the task that connects; if it has connected already, close its connection."""
    connecting.cancel()
    connecting.add_done_callback(_close_result)


def _close_result(connected: asyncio.Task[AsyncConnection]) -> None:
    if not connected.cancelled() and connected.exception() is None:
        connected.result().close()


def connect_step(address: Address) -> Step:
    """Return the step whose result is a new connection."""
    return Step(partial(Connection.open, address), partial(AsyncConnection.open, address))


def send_step(connection: Any, *commands: bytes) -> Step:
    """Return the step that sends packed commands; its result is the reply to the last one.

    The connection is a :class:`Connection`, or for asyncio an :class:`AsyncConnection`.
    """
    data = b"".join(commands)

    def run() -> Any:
        connection.send(data)
        return [connection.read() for _ in commands][-1]

    return Step(run, lambda: connection.request(data, len(commands)))
