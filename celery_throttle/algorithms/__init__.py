"""The algorithms in pure Python and whole numbers: what the scripts on the server must agree with.

Each algorithm has a Lua file beside it with the same rules under the same names; the tests run both
side by side. Nothing is rounded but where a rule says so.

Time is an argument: whole microseconds of any clock. Costs are millionths of a unit. A state is an
immutable value of what one limit and key remembers, and belongs to the definition under which it
was written.
"""

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.definition import Definition
from celery_throttle.algorithms.local import Local
from celery_throttle.algorithms.meters import Gcra, LeakyBucket, LeakyQueue, TokenBucket
from celery_throttle.algorithms.sliding_log import SlidingLog
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.windows import FixedWindow, SlidingWindow

__all__ = [
    "Adaptive",
    "Definition",
    "FixedWindow",
    "Gcra",
    "LeakyBucket",
    "LeakyQueue",
    "Local",
    "SlidingLog",
    "SlidingWindow",
    "Slots",
    "TokenBucket",
]
