"""Fan-outs: many tasks put into their lines by one call, and followed by their name.

::

    publisher.py           fan_out(): checks its arguments, and sends signatures batch by batch
    part_publisher.py      sends the tasks of one part
    entries.py             signatures as entries of lines: ids, requirements, messages
    templates.py           messages of similar signatures, made faster from one message
    parts.py               the parts of a fan-out, one in each shard of its limits
    enlist.py              batches of entries as calls of enlist.lua
    handle.py              FanOut: progress, pause, cancel, results, forecast
    unlimited.py           fan-outs while limits are disabled
    bar.py                 the progress on a terminal
"""

from __future__ import annotations

from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.observe.status.fan_outs import Progress

__all__ = ["FanOut", "Progress"]
