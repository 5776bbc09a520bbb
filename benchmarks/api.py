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
its complete windows, of slots the time that they were busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from aiohttp import web

from benchmarks.stage import ROOT

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

RATE, SLOTS, HOLD_SECONDS = 100, 10, 0.1


class Rule:
    """No limit, and what all rules count."""

    #: Of a refusal.
    headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.passed = self.refused = 0
        self.began: float | None = None

    async def handle(self, _request: web.Request) -> web.Response:
        """Answer a request."""
        if self.began is None:
            self.began = time.monotonic()
        if await self.is_allowed():
            self.passed += 1
            return web.Response(text="ok")
        self.refused += 1
        return web.Response(status=429, headers=self.headers)

    async def is_allowed(self) -> bool:
        """Decide, and hold a request that is allowed as long as it takes."""
        return True

    def used(self) -> float | None:
        """Return the share of the quota that was made use of; None while nothing can be said."""
        return None

    def stats(self) -> dict[str, Any]:
        """Return what was counted."""
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        counted = {"passed": self.passed, "refused": self.refused}
        return {**counted, "seconds": seconds, "used": self.used()}


class Window(Rule):
    """:data:`RATE` in each second."""

    headers: Mapping[str, str] = {"Retry-After": "1"}

    def __init__(self) -> None:
        super().__init__()
        self._allowed: Counter[int] = Counter()

    async def is_allowed(self) -> bool:
        """Allow while the second has room."""
        second = int(time.monotonic())
        if self._allowed[second] >= RATE:
            return False
        self._allowed[second] += 1
        return True

    def used(self) -> float | None:
        """Return the 200s in complete windows, of what these allow."""
        if self.began is None:
            return None
        complete = range(int(self.began) + 1, int(time.monotonic()))
        most = len(complete) * RATE
        return sum(self._allowed[second] for second in complete) / most if most else None


class AtOnce(Rule):
    """:data:`SLOTS` at once, each for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0
        self._busy, self._since = 0.0, time.monotonic()

    async def is_allowed(self) -> bool:
        """Allow while a slot is free; a client that has gone meanwhile keeps its slot busy, too."""
        if self._taken >= SLOTS:
            return False
        self._change(1)
        await asyncio.sleep(HOLD_SECONDS)
        self._change(-1)
        return True

    def _change(self, by: int) -> None:
        now = time.monotonic()
        self._busy += self._taken * (now - self._since)
        self._since = now
        self._taken += by

    def used(self) -> float | None:
        """Return the time that slots were busy, of all there was since the first request."""
        if self.began is None:
            return None
        self._change(0)
        return self._busy / (SLOTS * max(1e-9, self._since - self.began))


async def serve() -> None:
    """Serve until standard input ends."""
    rules = {"open": Rule(), "window": Window(), "at-once": AtOnce()}

    async def stats(_request: web.Request) -> web.Response:
        return web.json_response({name: rule.stats() for name, rule in rules.items()})

    app = web.Application()
    app.router.add_get("/stats", stats)
    for name, rule in rules.items():
        app.router.add_get(f"/{name}", rule.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1000).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


class LocalAPI(contextlib.AbstractContextManager["LocalAPI"]):
    """The API in a process of its own; a context that ends it."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.api"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT)
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def url(self, path: str) -> str:
        """Return the address of a rule."""
        return f"http://127.0.0.1:{self._port}/{path}"

    def stats(self) -> dict[str, Any]:
        """Return the figures of all rules."""
        with urlopen(self.url("stats"), timeout=10) as answer:  # noqa: S310  # of this process
            stats: dict[str, Any] = json.load(answer)
        return stats


if __name__ == "__main__":
    asyncio.run(serve())
