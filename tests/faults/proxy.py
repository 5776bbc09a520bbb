"""A TCP proxy between workers and a server, whose line can be cut, slowed and left dead."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tests.servers.server import free_port

#: What is read at once; a call of ours is far smaller.
CHUNK = 65_536


class Proxy:
    """Passes bytes on, each direction in order. It runs in a thread of its own.

    Attributes:
        url: of the Redis that it stands for.
        delay: seconds by which each chunk is late, both ways; may be set at any time.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.delay = 0.0
        self._alive = asyncio.Event()
        self._held, self._passing = b"", asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(10)

    def pull(self) -> None:
        """Pass nothing on, and close no connection, as if a cable had been pulled."""
        self._loop.call_soon_threadsafe(self._alive.clear)

    def plug_in(self) -> None:
        self._loop.call_soon_threadsafe(self._alive.set)

    def hold_replies(self, content: bytes) -> None:
        """Hold back each reply that contains this, until :meth:`pass_replies`."""
        self._held = content

    def pass_replies(self) -> None:
        self._held = b""
        self._loop.call_soon_threadsafe(self._passing.set)

    def cut(self) -> None:
        """Close all connections; new ones may be made at once."""
        self._call(self._cut)

    def switch(self, target: int) -> None:
        """Stand for another server from now on, and close all connections, as a failover does."""
        self._target = target
        self.cut()

    def refuse(self) -> None:
        """Close all connections, and let nobody connect until :meth:`accept`."""
        self._call(self._refuse)

    def accept(self) -> None:
        self._call(self._listen)

    def close(self) -> None:
        self._call(self._refuse)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._listening.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._alive.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)

    async def _refuse(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_target, to_target = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {to_target, writer}
        await asyncio.gather(
            self._pass_on(reader, to_target), self._pass_on(from_target, writer, replies=True)
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._alive.wait()
                if replies and self._held and self._held in chunk:
                    await self._passing.wait()
                writer.write(chunk)
        writer.close()
        self._writers.discard(writer)
