"""A page of metrics while 100,000 tasks of 100,000 keys wait at 1,000 limits.

The page is read by the command ``metrics``, over HTTP. Theirs is the page while one key of each
limit has a task: the page must not grow with keys. Then phases of 5 seconds alternate: in one, the
page is read once, three times as often as Prometheus usually does; in the other it is not read.
Meanwhile two workers run plain tasks; their latency is that of ``probes.py``. In further phases of
both kinds, one client makes decisions and claims, one after another, at a limit of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from benchmarks.lines import Claimant, park, park_at_each
from benchmarks.probes import Probes
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import Stage
from celery_throttle import Limiter

#: Seconds within which a page must be read, of one script, and of a phase.
PAGE, SCRIPT, PHASE = 0.5, 0.005, 5.0


def run(options: Options) -> Result:
    """Read pages, then run the phases."""
    limits, keys = options.pick(1_000, 100), options.pick(100, 10)
    phases, pages = options.pick(25, 1), options.pick(20, 5)
    latencies: dict[bool, list[float]] = {True: [], False: []}
    with Stage() as stage:
        names = [f"limit-{number}" for number in range(limits)]
        limiter = Limiter(stage.store_url, dict.fromkeys(names, "1/h"))
        limiter.register()
        options.say(f"metrics: {limits:,} limits with {keys:,} keys each")
        with _server(stage.store_url) as read:
            park_at_each(limiter, names, 1, of_keys=True)
            few = [read() for _ in range(pages)]
            park_at_each(limiter, names, keys, of_keys=True)
            many = [read() for _ in range(pages)]
            stage.store.config_set("slowlog-log-slower-than", 100)
            stage.store.config_set("slowlog-max-len", 10_000)
            stage.store.slowlog_reset()
            read()
            slowest = max(entry["duration"] for entry in stage.store.slowlog_get(10_000))
            stage.store.config_set("slowlog-log-slower-than", -1)
            workers = stage.workers("ours", "ours")
            options.say(f"metrics: {phases} phases of each")
            for _ in range(phases):
                for is_busy in (True, False):
                    with Probes(stage, workers) as probes:
                        took = read().seconds if is_busy else 0.0
                        time.sleep(PHASE - took)
                    latencies[is_busy] += probes.latencies()
            for worker in workers:
                worker.end()
            calls = _Calls(stage.store_url)
            with ThreadPoolExecutor(1) as scraper:
                for is_busy in (True, False) * options.pick(5, 1):
                    if is_busy:
                        scraper.submit(read)
                    calls.run(PHASE, is_busy=is_busy)
    busy, quiet = (percentile(latencies[is_busy], 0.99) for is_busy in (True, False))
    seconds, fewer = (median(page.seconds for page in found) for found in (many, few))
    size, smaller = (found[-1].size for found in (many, few))
    return Result(
        name="metrics",
        theirs="the page with one key of each limit; plain tasks without scrapes",
        figures=[
            Figure("page", "s", seconds, fewer, at_most=PAGE),
            Figure("page", "bytes", size, smaller),
            Figure("page, ratio", "", size / smaller, at_most=1.05),
            Figure("slowest script", "s", slowest / 1e6, at_most=SCRIPT),
            Figure("plain tasks, p99", "ms", busy * 1e3, quiet * 1e3),
            Figure("plain tasks, p99, ratio", "", busy / quiet, at_most=1.2),
            *calls.figures(),
        ],
    )


class _Calls:
    """Decisions, and claims of single tasks, at a limit of their own; and their times."""

    def __init__(self, url: str) -> None:
        self._limiter = Limiter(url, {"api": "1000000/s burst 1000000"}, prefix="{calls}")
        self._limiter.register()
        self._claimant = Claimant(self._limiter)
        self._decisions: dict[bool, list[float]] = {True: [], False: []}
        self._claims: dict[bool, list[float]] = {True: [], False: []}

    def run(self, seconds: float, *, is_busy: bool) -> None:
        """Make calls for some seconds; ``is_busy``: whether the page is read in that time."""
        limiter, ends = self._limiter, time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.perf_counter()
            limiter.try_acquire(["api"])
            self._decisions[is_busy].append(time.perf_counter() - began)
            limiter["api"].pause(60)  # or the task would not have to wait
            limiter.store.run(park(limiter, ["api"], f"{time.monotonic_ns()}"))
            limiter["api"].resume()
            self._claims[is_busy].append(self._claimant.claim([self._claimant.token])[0])

    def figures(self) -> Iterator[Figure]:
        """Return the medians."""
        for name, found in (("decision", self._decisions), ("claim", self._claims)):
            busy, quiet = (median(found[is_busy]) for is_busy in (True, False))
            yield Figure(name, "us", busy * 1e6, quiet * 1e6)
            yield Figure(f"{name}, ratio", "", busy / quiet, at_most=1.02)


class _Page:
    """A page of metrics."""

    def __init__(self, address: str) -> None:
        began = time.monotonic()
        with urlopen(address) as response:  # noqa: S310  # of this benchmark
            self.size = len(response.read())
        self.seconds = time.monotonic() - began


@contextmanager
def _server(url: str) -> Iterator[Callable[[], _Page]]:
    """Run the command; yield a function that reads its page."""
    command = [str(Path(sys.executable).with_name("celery-throttle")), "--url", url, "metrics"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--host", "127.0.0.1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None  # noqa: S101  # a pipe
        address = process.stdout.readline().split()[-1]
        yield lambda: _Page(address)
    finally:
        process.terminate()
        process.wait()
