"""Fan-outs: many tasks put into their lines by one call, and followed by their name.

::

    sending.py    what Celery would send for a signature, without sending it
    templates.py  the same for signatures that are alike, faster
    places.py     which line a message belongs in
    enlisting.py  batches of messages as calls of ``enlist.lua``
    publisher.py  goes through the signatures: ids, batches, holds
    handle.py     a fan-out by its name: progress, pause, cancel, results
    bar.py        the same on a terminal
"""

from __future__ import annotations

from celery_throttle.fanout.handle import FanOut, Progress

__all__ = ["FanOut", "Progress"]
