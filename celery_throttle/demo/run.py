"""The course of the demo: start, send, read, show, end."""

from __future__ import annotations

import time

from celery_throttle.demo.record import HURRY, LEAD, TRICKLE, Record
from celery_throttle.demo.stage import Stage
from celery_throttle.demo.views import View
from celery_throttle.limits.limit import Limit

#: Seconds between two looks at what happened.
LOOK = 0.05

#: Seconds of one look in which tasks may be sent.
SENDING = 0.05

#: Seconds after which the demo ends though tasks are missing, beyond twice the time it should take.
PATIENCE = 15.0


def run(url: str | None, limit: Limit, tasks: int, view: View) -> Record:
    """Run it, and give what happened."""
    record = Record(limit, tasks)
    view.show(record)
    with Stage(url, limit) as stage:
        record.server = stage.server
        record.began = time.monotonic()
        end = record.began + 2 * record.planned + PATIENCE
        while not _is_over(record) and time.monotonic() < end:
            time.sleep(LOOK)
            stage.check()
            _send(stage, record)
            _read(stage, record)
            view.show(record)
    record.ended = True
    view.show(record)
    return record


def _send(stage: Stage, record: Record) -> None:
    """Send what is due: the trickle, and from LEAD on the tasks under the limit, in a hurry."""
    now = time.monotonic() - record.began
    limited = min(record.tasks, int((now - LEAD) * record.rate * HURRY))
    # The trickle ends with the last task that waits.
    plain = int(now * TRICKLE) if len(record.starts) < record.tasks else 0
    while record.plain_sent < plain:
        stage.send("plain")
        record.plain_sent += 1
    stop = time.monotonic() + SENDING
    while record.sent < limited and time.monotonic() < stop:
        stage.send("limited")
        record.sent += 1


def _read(stage: Stage, record: Record) -> None:
    waiting = stage.waiting()
    for entry in stage.events():
        record.add(entry)
    record.now = time.monotonic() - record.began
    record.waiting.append((record.now, waiting))


def _is_over(record: Record) -> bool:
    ran = len(record.starts) >= record.tasks
    return ran and len(record.plain) >= record.plain_sent
