"""A local HTTP API with limits of its own, which clients are measured against.

``python -m benchmarks.api`` prints its port and serves on 127.0.0.1 until its standard input ends;
benchmarks start it by :class:`LocalAPI`. The path chooses the rule:

``/window``
    100 requests in each second of its monotonic clock. Those over it get 429 and ``Retry-After:
    1``.
``/at-once``
    10 at once, each answered after 100 ms. Those over it get a bare 429 at once.
``/open``
    No limit.

``/stats`` gives JSON: of each rule the answers (``passed``, ``refused``), the ``seconds`` since its
first request, and ``used``, the share of its quota that was made use of: of a window the 200s in
its complete windows, of slots the time that they were busy. It knows as much of HTTP/1.1 as clients
need that send no bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

Reply = Callable[[bytes], None]

RATE, SLOTS, HOLD_SECONDS = 100, 10, 0.1

_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


def answer(status: str, body: bytes, headers: str = "") -> bytes:
    """An answer as it goes over the wire; each header ends its line."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


OK = answer("200 OK", b"ok")
REFUSED = answer("429 Too Many Requests", b"")
LATER = answer("429 Too Many Requests", b"", "Retry-After: 1\r\n")


class Rule:
    """No limit, and what all rules count."""

    def __init__(self) -> None:
        self.passed = self.refused = 0
        self.began: float | None = None

    def ask(self, reply: Reply) -> None:
        """Answer a request, now or later."""
        if self.began is None:
            self.began = time.monotonic()
        self.decide(reply)

    def decide(self, reply: Reply) -> None:
        """Pass or refuse."""
        self.passed += 1
        reply(OK)

    def used(self) -> float | None:
        """Share of the quota that was made use of; None if nothing can be said yet."""
        return None

    def stats(self) -> dict[str, Any]:
        """For JSON."""
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        counted = {"passed": self.passed, "refused": self.refused}
        return {**counted, "seconds": seconds, "used": self.used()}


class Window(Rule):
    """:data:`RATE` in each second."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: Counter[int] = Counter()

    def decide(self, reply: Reply) -> None:
        """Pass while the second has room."""
        second = int(time.monotonic())
        if self._passed[second] < RATE:
            self.passed += 1
            self._passed[second] += 1
            reply(OK)
        else:
            self.refused += 1
            reply(LATER)

    def used(self) -> float | None:
        """200s in complete windows, of what these allow."""
        if self.began is None:
            return None
        complete = range(int(self.began) + 1, int(time.monotonic()))
        allowed = len(complete) * RATE
        return sum(self._passed[second] for second in complete) / allowed if allowed else None


class AtOnce(Rule):
    """:data:`SLOTS` at once, each for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0
        self._busy, self._since = 0.0, time.monotonic()

    def decide(self, reply: Reply) -> None:
        """Pass while a slot is free; a client that has gone meanwhile keeps its slot busy, too."""
        if self._taken >= SLOTS:
            self.refused += 1
            reply(REFUSED)
            return
        self._change(1)
        asyncio.get_running_loop().call_later(HOLD_SECONDS, self._end, reply)

    def _end(self, reply: Reply) -> None:
        self._change(-1)
        self.passed += 1
        reply(OK)

    def _change(self, by: int) -> None:
        now = time.monotonic()
        self._busy += self._taken * (now - self._since)
        self._since = now
        self._taken += by

    def used(self) -> float | None:
        """Time that slots were busy, of all there was since the first request."""
        if self.began is None:
            return None
        self._change(0)
        return self._busy / (SLOTS * max(1e-9, self._since - self.began))


class Served(asyncio.Protocol):
    """One connection. Its requests are answered one after the other."""

    def __init__(self, rules: dict[bytes, Rule]) -> None:
        self._rules = rules
        self._unread = b""
        self._answering = False
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # TCP is a stream
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collect, and answer."""
        self._unread += data
        self._next()

    def _next(self) -> None:
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if self._answering or not end:
            return
        self._unread = rest
        self._answering, self._last = True, _CLOSE.search(head) is not None
        name = re.split(rb"[/? ]", head, maxsplit=3)[2]
        if name in self._rules:
            self._rules[name].ask(self._reply)
        else:
            stats = {key.decode(): rule.stats() for key, rule in self._rules.items()}
            self._reply(answer("200 OK", json.dumps(stats).encode()))

    def _reply(self, reply: bytes) -> None:
        self._answering = False
        if self._transport.is_closing():
            return
        self._transport.write(reply)
        if self._last:
            self._transport.close()
        elif self._unread:
            asyncio.get_running_loop().call_soon(self._next)


async def serve() -> None:
    """Serve until standard input ends."""
    rules = {b"open": Rule(), b"window": Window(), b"at-once": AtOnce()}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(rules), "127.0.0.1", backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


class LocalAPI:
    """The API in a process of its own; a context that ends it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.api"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        port = self._process.stdout.readline()
        if not port:
            self.__exit__()
            raise RuntimeError("the API did not start: its errors are above")
        self.port = int(port)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def url(self, rule: str) -> str:
        """Return the address of a rule."""
        return f"http://127.0.0.1:{self.port}/{rule}"

    def stats(self) -> dict[str, Any]:
        """See above."""
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", "/stats")
            stats: dict[str, Any] = json.loads(connection.getresponse().read())
        return stats


if __name__ == "__main__":
    asyncio.run(serve())
