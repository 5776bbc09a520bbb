# ruff: noqa: INP001  # Python imports this file at its start, from the path, not from a package
"""Makes time.sleep() work in a Python process that libfaketime gives the time.

libfaketime 0.9.10 subtracts the time of day from the deadline that Python (3.11 and later) gives to
the kernel, also if the monotonic clock is not to be moved, and the call fails with EINVAL.
"""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], float(seconds))


time.sleep = _sleep
