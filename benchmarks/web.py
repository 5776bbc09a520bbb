"""One open web page of 100 limits with waiting tasks and a quarter of an hour of records.

Measured is the processor time of the server that keeps the limits, while the page is polled as a
browser does it and while it is not, that of the process that serves the page, and the time of a
poll. Nothing else uses the server.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.lines import park_at_each
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage
from celery_throttle import Limiter
from celery_throttle.observe.status.records import record_totals
from celery_throttle.testing import ManualClock
from celery_throttle.web import create_app

#: Seconds between two polls of a page.
POLL = 2.0


def run(options: Options) -> Result:
    """Poll the page for some time, then wait for as long."""
    limits, tasks = 100, 20
    polls = options.pick(60, 5)
    with Stage() as stage:
        names = [f"limit-{number:03}" for number in range(limits)]
        definitions = dict.fromkeys(names, "10/m")
        options.say(f"web: {limits} limits with {tasks} waiting tasks each, {polls} polls")
        _record(stage.store_url, definitions)
        limiter = Limiter(stage.store_url, definitions)
        park_at_each(limiter, names, tasks, of_keys=False)
        client = create_app(limiter, auth=lambda _: True).test_client()
        client.get("/")
        seconds, etag = [], ""
        before, own_before = _processor_seconds(stage), time.process_time()
        for _ in range(polls):
            began = time.monotonic()
            reply = client.get("/", headers={"If-None-Match": etag})
            seconds.append(time.monotonic() - began)
            etag = reply.headers["ETag"]
            time.sleep(max(0.0, POLL - seconds[-1]))
        busy, own = _processor_seconds(stage) - before, time.process_time() - own_before
        before = _processor_seconds(stage)
        time.sleep(POLL * polls)
        idle = _processor_seconds(stage) - before
    share = 100 / (POLL * polls)
    return Result(
        name="web",
        theirs="the server without the page",
        figures=[
            Figure("server's processor", "%", busy * share, idle * share),
            Figure("of the page", "%", (busy - idle) * share, at_most=1.0),
            Figure("processor of the web process", "%", own * share),
            Figure("poll", "ms", median(seconds) * 1e3, at_most=500.0),
            Figure("longest poll", "ms", max(seconds) * 1e3),
        ],
    )


def _record(url: str, definitions: dict[str, str]) -> None:
    """Use all limits for 15 minutes, by a clock that this function sets."""
    clock = ManualClock()
    clock.now = time.time_ns() // 1000 - 900_000_000
    limiter = Limiter(url, definitions, clock=clock)
    for _ in range(90):
        for name in definitions:
            limiter[name].try_acquire()
        limiter.run_plan(record_totals(limiter.observer))
        clock.advance(10.0)


def _processor_seconds(stage: Stage) -> float:
    about = stage.store.info("cpu")
    return float(about["used_cpu_user"] + about["used_cpu_sys"])
