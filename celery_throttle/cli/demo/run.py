"""Runs the demo: start, send, read, show, end."""

from __future__ import annotations

import time

from celery_throttle.cli.demo.record import (
    LEAD_SECONDS,
    PLAIN_TASKS_PER_SECOND,
    SEND_RATE_FACTOR,
    Record,
)
from celery_throttle.cli.demo.stage import Stage
from celery_throttle.cli.demo.views import View
from celery_throttle.limits.limit import Limit

#: Seconds between two polls.
POLL_SECONDS = 0.05

#: Seconds of one poll in which tasks may be sent.
MAX_SEND_SECONDS = 0.05

#: Seconds, beyond twice the planned time, after which the demo ends though tasks are missing.
GRACE_SECONDS = 15.0


def run_demo(url: str | None, limit: Limit, tasks: int, view: View) -> Record:
    """Run the demo and return its record."""
    record = Record(limit, tasks)
    view(record)
    with Stage(url, limit) as stage:
        record.server = stage.server
        record.began = time.monotonic()
        end = record.began + 2 * record.planned + GRACE_SECONDS
        while not _is_over(record) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            stage.check()
            _send(stage, record)
            _read(stage, record)
            view(record)
    record.ended = True
    view(record)
    return record


def _send(stage: Stage, record: Record) -> None:
    """Send the tasks that are due: plain ones, and from LEAD_SECONDS on limited ones."""
    now = time.monotonic() - record.began
    limited = min(record.tasks, int((now - LEAD_SECONDS) * record.rate * SEND_RATE_FACTOR))
    # No more plain tasks are sent once the last limited task has started.
    plain = int(now * PLAIN_TASKS_PER_SECOND) if len(record.starts) < record.tasks else 0
    while record.plain_sent < plain:
        stage.send("plain")
        record.plain_sent += 1
    stop = time.monotonic() + MAX_SEND_SECONDS
    while record.sent < limited and time.monotonic() < stop:
        stage.send("limited")
        record.sent += 1


def _read(stage: Stage, record: Record) -> None:
    waiting = stage.waiting()
    for event in stage.events():
        record.add(event)
    record.now = time.monotonic() - record.began
    record.waiting.append((record.now, waiting))


def _is_over(record: Record) -> bool:
    ran = len(record.starts) >= record.tasks
    return ran and len(record.plain) >= record.plain_sent
