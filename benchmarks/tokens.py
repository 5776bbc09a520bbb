"""Calls that cost requests and tokens: OpenAI's and Anthropic's SDKs, in several ways.

The vendors are local servers with the limits and the answers that the vendors document, see
``vendors.py``: 300 calls that use 333,000 tokens, with estimates of twice their use. All limits are
three times as fast as those of the issue that this shows (1,500 requests and 900,000 tokens a
minute), and answers take 0.1 s. With ``--full``, they are 500 and 300,000 a minute, and 0.3 s.

Tasks run on two prefork workers with two processes each. *Quota used* is the share of what the
vendor's bucket would have allowed of the quantity that binds, from the first request until 95% of
the calls have been answered. *Processes held* is the share of the processes' time that tasks spent
beyond the answers of the vendor. *Paid* is the number of answers with status 200.

``ours``
    ``throttled(openai.OpenAI(), {"requests": ..., "tokens": ...})`` in the task.
``errors``
    5% of the requests get status 500, and 5% time out. The tasks retry.
``in one loop``
    300 calls at the same time by ``throttled(openai.AsyncOpenAI(), ...)``, without Celery.
``unknown limits``
    The same, 600 calls, with limits such as ``adaptive 90000..9000000/m``: from a tenth of the
    vendor's to ten times that, which learn from its answers. At most 2% may be refused.
``token-throttle``
    ``SyncRateLimiter.reserve()`` on Redis, which waits in the process. It needs Python 3.12.
``limits``
    Its sliding window counters of the estimates, and ``self.retry()`` if they refuse.
``the SDK's retries``
    No limits: the SDK sends a refused request up to two more times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from benchmarks import vendors
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import ROOT, Stage, Worker, ready, wait_until

PROCESSES = 4

#: Bars of the issue. What a task spends beyond the answers is the work of the SDK and the worker.
LEAST_USED, MOST_HELD = 0.95, 0.1
LEAST_USED_UNKNOWN, MOST_REFUSED_UNKNOWN = 0.9, 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """One way to send the calls."""

    name: str
    way: str
    sdk: str = "openai"
    errors: float = 0.0
    ours: bool = True
    in_loop: bool = False
    is_unknown: bool = False  #: whether our limits have to learn those of the vendor


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one way."""

    counts: vendors.Counts
    failed: int
    held: float | None = None  #: share of the processes' time
    stood: float | None = None  #: the longest time that a loop stood still, in seconds


WAYS = (
    Way("OpenAI, ours", "ours"),
    Way("OpenAI, ours, streams", "streams"),
    Way("OpenAI, ours, errors", "errors", errors=0.1),
    Way("Anthropic, ours", "ours", sdk="anthropic"),
    Way("OpenAI, ours, in one loop", "loop", in_loop=True),
    Way("Anthropic, ours, in one loop", "loop", sdk="anthropic", in_loop=True),
    Way("OpenAI, unknown limits", "loop", in_loop=True, is_unknown=True),
    Way("Anthropic, unknown limits", "loop", sdk="anthropic", in_loop=True, is_unknown=True),
    Way("OpenAI, token-throttle", "token-throttle", ours=False),
    Way("OpenAI, limits", "limits", ours=False),
    Way("OpenAI, the SDK's retries", "sdk", ours=False),
)


def run(options: Options) -> Result:
    """Measure each way."""
    calls, speed = options.pick(300, 120), 1.0 if options.full else 3.0
    figures: list[Figure] = []
    for way in WAYS:
        if way.way == "token-throttle" and not find_spec("token_throttle"):
            options.say("tokens: token-throttle is not installed, and left out")
            continue
        options.say(f"tokens: {way.name}")
        number = 2 * calls if way.is_unknown else calls
        figures += _figures(way, measure(way, number, speed), number)
    return Result(name="tokens", theirs="", figures=figures)


def _figures(way: Way, outcome: Outcome, calls: int) -> Iterator[Figure]:
    counts = outcome.counts
    least, most_refused = LEAST_USED, 0.0
    if way.is_unknown:
        least, most_refused = LEAST_USED_UNKNOWN, MOST_REFUSED_UNKNOWN
    refused = counts.statuses[429] / counts.statuses.total()
    rows: list[tuple[str, str, float | None, dict[str, Any]]] = [
        (f"{way.name}: quota used", "", counts.used, {"at_least": least}),
        ("  requests refused (429)", "of all", refused, {"at_most": most_refused}),
        ("  calls failed", "", outcome.failed, {"at_most": 0}),
        ("  calls paid", "", counts.statuses[vendors.OK], {"at_most": calls}),
        ("  time", "s", counts.seconds, {}),
        ("  processes held", "", outcome.held, {"at_most": MOST_HELD}),
        ("  the loop stood still for", "s", outcome.stood, {}),
    ]
    for name, unit, value, bar in rows:
        if value is None:
            continue
        yield Figure(name, unit, value, **(bar if way.ours else {}))


def measure(way: Way, calls: int, speed: float) -> Outcome:
    """Send the calls in one way."""
    timeout = 1.0 if way.errors else 60.0
    vendor = vendors.start(way.sdk, speed, way.errors, 1.5 * timeout)
    try:
        settings = {
            "way": way.way,
            "sdk": way.sdk,
            "url": vendor.url,
            "limits": vendors.definitions(way.sdk, speed, is_unknown=way.is_unknown),
            "timeout": timeout,
            "burst_seconds": int(vendors.BURST_SECONDS / speed),
        }
        sizes = vendors.sizes(calls)
        with Stage(own_store=True, settings=settings) as stage:
            if way.in_loop:
                return _in_loop(stage, vendor, {**settings, "sizes": sizes})
            return _in_tasks(stage, vendor, sizes)
    finally:
        vendor.close()


def _in_tasks(stage: Stage, vendor: Any, sizes: list[int]) -> Outcome:
    workers = [stage.worker("llm"), stage.worker("llm")]
    ready(workers)
    stage.send("call", len(sizes), keys=[str(size) for size in sizes])
    wait_until(lambda: _ended(workers) >= len(sizes), "all calls")
    counts = vendors.count(vendor)
    failed = sum(worker.count("failed") for worker in workers)
    busy = sum(
        mark.time * sign
        for kind, sign in (("ends", 1), ("starts", -1))
        for worker in workers
        for mark in worker.marks(kind)
    )
    held = (busy - vendor.answering) / (PROCESSES * counts.seconds)
    return Outcome(counts, failed, held=held)


def _ended(workers: list[Worker]) -> int:
    return sum(worker.count(kind) for worker in workers for kind in ("done", "failed"))


def _in_loop(stage: Stage, vendor: Any, job: dict[str, Any]) -> Outcome:
    command = (sys.executable, "-m", "benchmarks.apps.llm_loop")
    text = json.dumps({**job, "store": stage.store_url})
    done = subprocess.run([*command, text], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout)
    if report["errors"]:
        print(report["errors"], file=sys.stderr)
    return Outcome(vendors.count(vendor), report["failed"], stood=report["stood"])
