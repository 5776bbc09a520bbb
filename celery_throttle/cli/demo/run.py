"""Runs the demo: starts a server and two workers, sends tasks, reads events, ends everything."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from celery_throttle.cli.demo.record import (
    LEAD_SECONDS,
    PLAIN_TASKS_PER_SECOND,
    SEND_RATE_FACTOR,
    Record,
)
from celery_throttle.cli.demo.tasks import EVENTS, LIMIT, VARIABLE, make_app
from celery_throttle.limits.key import LimitRef
from celery_throttle.testing.server import Process, server_version, start_server, wait_until

WORKERS = 2
PROCESSES = 2
POLL_SECONDS = 0.1

#: Seconds of one poll in which tasks may be sent.
MAX_SEND_SECONDS = 0.1

#: Seconds, beyond twice the planned time, after which the demo ends though tasks are missing.
GRACE_SECONDS = 15.0

_WORKER_OPTIONS = (
    *("--pool", "prefork", "--concurrency", str(PROCESSES), "--loglevel", "WARNING"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


def run_demo(record: Record, check: Callable[[], None]) -> Iterator[None]:
    """Run the demo of an empty record; yield at each poll, and when the demo has ended.

    ``check`` raises to end the demo.
    """
    yield
    with _start(str(record.limit), check) as (app, client, check_all):
        record.server = server_version(client)
        record.began = time.monotonic()
        end = record.began + 2 * record.planned + GRACE_SECONDS
        while not record.is_complete and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            check_all()
            _send(app, record)
            _read(app, client, record)
            yield
    record.ended = True
    yield


@contextmanager
def _start(limit: str, check: Callable[[], None]) -> Iterator[tuple[Any, Any, Callable[[], None]]]:
    """Context: the app, the client of the server, and a check that the workers live."""
    with ExitStack() as ends:
        root = tempfile.TemporaryDirectory(prefix="throttle-demo-", ignore_cleanup_errors=True)
        directory = Path(ends.enter_context(root))
        url = start_server(directory, ends)
        client: Any = ends.enter_context(redis.Redis.from_url(url))
        app = ends.enter_context(make_app(url, limit))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CELERY_")}
        environment = {**inherited, VARIABLE: json.dumps((url, limit))}
        workers = []
        for name in (f"worker-{number + 1}" for number in range(WORKERS)):
            command = (sys.executable, "-m", f"{__package__}.tasks", "worker", *_WORKER_OPTIONS)
            hostname = ("--hostname", f"{name}@demo")
            workers.append(Process(name, [*command, *hostname], directory, environment))
            ends.callback(workers[-1].end)

        def check_all() -> None:
            check()
            for worker in workers:
                worker.check()

        wait_until(lambda: client.llen(EVENTS) >= WORKERS, check_all, "the workers")
        yield app, client, check_all


def _send(app: Any, record: Record) -> None:
    """Send the tasks that are due: plain ones, and from LEAD_SECONDS on limited ones."""
    now = time.monotonic() - record.began
    limited = min(record.tasks, int((now - LEAD_SECONDS) * record.rate * SEND_RATE_FACTOR))
    # No more plain tasks are sent once the last limited task has started.
    plain = int(now * PLAIN_TASKS_PER_SECOND) if len(record.starts) < record.tasks else 0
    while record.plain_sent < plain:
        app.tasks["plain"].delay(time.monotonic())
        record.plain_sent += 1
    stop = time.monotonic() + MAX_SEND_SECONDS
    while record.sent < limited and time.monotonic() < stop:
        app.tasks["limited"].delay(time.monotonic())
        record.sent += 1


def _read(app: Any, client: Any, record: Record) -> None:
    waiting = client.get(app.throttle.keys.backlog(LimitRef(LIMIT, None)))
    for event in client.lrange(EVENTS, record.events, -1):
        record.add(event)
    record.now = time.monotonic() - record.began
    record.waiting.append((record.now, int(waiting or 0)))
