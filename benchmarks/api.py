"""A local HTTP API with limits of its own: what clients are measured and tested against.

``python -m benchmarks.api`` prints its port and serves on 127.0.0.1 until it is killed; tests and
benchmarks start it by :class:`LocalAPI`. The first part of the path chooses the rule, the rest is
free, so ``/window/users/42`` is under ``window``:

``/window``
    100 requests in each second of its monotonic clock (``--rate``). Those over it get 429 and
    ``Retry-After: 1``. With ``--headers`` each answer also has X-RateLimit-Limit, -Remaining and
    -Reset, the last as seconds from now (``seconds``) or as seconds since the epoch (``epoch``).
``/at-once``
    10 at once (``--slots``), each answered after 100 ms (``--hold``). Those over it get a bare 429
    at once.
``/open``
    No limit.

``/stats`` gives JSON: of each rule the answers (``passed``, ``refused``), the ``seconds`` since its
first request, and ``used``, the share of its quota that was made use of: of a window the 200s in
its complete windows, of slots the time that they were busy. ``processor`` is the processor time of
this process in seconds. ``/reset`` zeroes these figures; slots in use and the current window stay
as they are. It knows as much of HTTP/1.1 as clients need: keep-alive, and bodies of a known length.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
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

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


def answer(status: str, body: bytes, headers: str = "") -> bytes:
    """An answer as it goes over the wire; each header ends its line."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


OK = answer("200 OK", b"ok")
REFUSED = answer("429 Too Many Requests", b"")


class Rule:
    """No limit, and what all rules count."""

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        """Forget what was counted."""
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
    """So many in each second."""

    def __init__(self, rate: int, headers: str | None) -> None:
        self._rate = rate
        self._headers = headers
        self._second, self._taken = 0, 0
        super().__init__()

    def zero(self) -> None:
        """Forget what was counted."""
        super().zero()
        self._passed: Counter[int] = Counter()

    def decide(self, reply: Reply) -> None:
        """Pass while the second has room."""
        now = time.monotonic()
        if int(now) != self._second:
            self._second, self._taken = int(now), 0
        if self._taken < self._rate:
            self._taken += 1
            self.passed += 1
            self._passed[self._second] += 1
            reply(answer("200 OK", b"ok", self._told(now)) if self._headers else OK)
        else:
            self.refused += 1
            headers = "Retry-After: 1\r\n" + self._told(now)
            reply(answer("429 Too Many Requests", b"", headers))

    def _told(self, now: float) -> str:
        if self._headers is None:
            return ""
        reset = self._second + 1 - now + (time.time() if self._headers == "epoch" else 0)
        told = {"Limit": self._rate, "Remaining": self._rate - self._taken, "Reset": reset}
        return "".join(f"X-RateLimit-{key}: {math.ceil(n)}\r\n" for key, n in told.items())

    def used(self) -> float | None:
        """200s in complete windows, of what these allow."""
        if self.began is None:
            return None
        complete = range(int(self.began) + 1, int(time.monotonic()))
        allowed = len(complete) * self._rate
        return sum(self._passed[second] for second in complete) / allowed if allowed else None


class AtOnce(Rule):
    """So many at once, each for a while."""

    def __init__(self, slots: int, hold: float) -> None:
        self._slots = slots
        self._hold = hold
        self._taken = 0
        super().__init__()

    def zero(self) -> None:
        """Forget what was counted."""
        super().zero()
        self._busy, self._since = 0.0, time.monotonic()

    def decide(self, reply: Reply) -> None:
        """Pass while a slot is free; a client that has gone meanwhile keeps its slot busy, too."""
        if self._taken >= self._slots:
            self.refused += 1
            reply(REFUSED)
            return
        self._change(1)
        asyncio.get_running_loop().call_later(self._hold, self._end, reply)

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
        return self._busy / (self._slots * max(1e-9, self._since - self.began))


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
        length = _LENGTH.search(head)
        body = int(length[1]) if length else 0
        if len(rest) < body:
            return
        self._unread = rest[body:]
        self._answering, self._last = True, _CLOSE.search(head) is not None
        name = re.split(rb"[/? ]", head, maxsplit=3)[2]
        if name in self._rules:
            self._rules[name].ask(self._reply)
        else:
            self._reply(self._about(name))

    def _about(self, name: bytes) -> bytes:
        if name == b"reset":
            for rule in self._rules.values():
                rule.zero()
            return OK
        if name != b"stats":
            return answer("404 Not Found", b"")
        stats: dict[str, Any] = {key.decode(): rule.stats() for key, rule in self._rules.items()}
        body = json.dumps({**stats, "processor": time.process_time()}).encode()
        return answer("200 OK", body, "Content-Type: application/json\r\n")

    def _reply(self, reply: bytes) -> None:
        self._answering = False
        if self._transport.is_closing():
            return
        self._transport.write(reply)
        if self._last:
            self._transport.close()
        elif self._unread:
            asyncio.get_running_loop().call_soon(self._next)


async def serve(rules: dict[bytes, Rule], *, port: int, tied: bool) -> None:
    """Serve until killed, or until standard input ends if tied to it."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(rules), "127.0.0.1", port, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    if tied:
        loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--hold", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--headers", choices=["seconds", "epoch"])
    parser.add_argument("--tied", action="store_true", help="end when standard input ends")
    given = parser.parse_args()
    rules = {
        b"open": Rule(),
        b"window": Window(given.rate, given.headers),
        b"at-once": AtOnce(given.slots, given.hold),
    }
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(rules, port=given.port, tied=given.tied))


class LocalAPI:
    """The API in a process of its own; a context that ends it.

    Args:
        options: as on the command line, ``LocalAPI("--rate", "20")``.
    """

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.api", "--tied", *self._options],
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

    def url(self, path: str) -> str:
        """``url("window")`` or ``url("window/users/42")``."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def stats(self) -> dict[str, Any]:
        """See above."""
        stats: dict[str, Any] = json.loads(self._get("/stats"))
        return stats

    def reset(self) -> None:
        """Zero the figures."""
        self._get("/reset")

    def _get(self, path: str) -> bytes:
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()


if __name__ == "__main__":
    main()
