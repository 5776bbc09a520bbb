"""Fan-outs: many tasks put into their lines by one call, and followed by their name.

::

    start.py      what fan_out() is given, checked
    publisher.py  goes through the signatures, batch by batch
    entries.py    signatures as entries of lines: ids, needs, messages
    capturing_producer.py   what Celery would send for a signature, without sending it
    templates.py  the same for signatures that are alike, faster
    destination.py          which line a message belongs in
    enlist.py     batches of entries as calls of enlist.lua
    handle.py     a fan-out by its name: pause, cancel, results, forecast
    progress.py   how far it is
    bar.py        the same on a terminal
    retry.py      a server that is out is waited for
    line_publisher.py       throttle_publish = "line": one task that is sent
"""

from __future__ import annotations

from celery_throttle.fanout.handle import FanOut
from celery_throttle.fanout.progress import Progress

__all__ = ["FanOut", "Progress"]
