"""Fan-outs: many tasks put into their lines by one call, and followed by their name.

Imports Celery, and the packages up to ``messages`` and ``tasks``.

::

    start.py               fan_out(): checks its arguments
    publisher.py           sends the signatures, batch by batch
    entries.py             signatures as entries of lines: ids, requirements, messages
    capturing_producer.py  the message that Celery would send, captured instead of sent
    tracers.py             one producer span, and the trace headers of all messages
    templates.py           messages of similar signatures, made faster from one message
    destination.py         the line of a message
    enlist.py              batches of entries as calls of enlist.lua
    handle.py              FanOut: progress, pause, cancel, results, forecast
    bar.py                 the progress on a terminal
    retry.py               retries while the server cannot be reached
    line_publisher.py      throttle_publish = "line": sends one task to its line
"""

from __future__ import annotations

from celery_throttle.fanout.handle import FanOut
from celery_throttle.observe.status.fan_outs import Progress

__all__ = ["FanOut", "Progress"]
