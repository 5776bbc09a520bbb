"""What has become of a process."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or waits only for its parent to learn that it has ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
