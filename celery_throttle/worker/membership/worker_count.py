"""The number of workers that share the limits, as far as one worker knows it.

A worker that starts during an outage uses the number from before its restart. That is kept in a
file beside the one in which Celery keeps the state of a worker.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from celery.utils.log import get_logger

logger = get_logger(__name__)

#: Added to the name of Celery's file.
SUFFIX = ".throttle"

#: A file with a larger number is damaged.
_MAX_STORED_COUNT = 1_000_000


class WorkerCount:
    """The number of workers, as one worker knows it.

    Args:
        state_db: path of Celery's file (``--statedb``, ``worker_state_db``); None keeps no file.
        configured: the number in the settings (``throttle_outage_workers``), if any.
        shard: name of the shard whose server reports the number; empty for the home shard.
    """

    def __init__(self, state_db: str | None, configured: int | None, shard: str = "") -> None:
        suffix = f"{SUFFIX}.{shard}" if shard else SUFFIX
        self._path = Path(f"{state_db}{suffix}") if state_db else None
        self._stored = None if self._path is None else _read(self._path)
        self._configured = configured
        self._reported: int | None = None

    @property
    def is_reported(self) -> bool:
        """Whether the server has reported the number since this worker started."""
        return self._reported is not None

    @property
    def known(self) -> int | None:
        """The number that the server reported last, with this worker; None if nothing is known.

        Before the first report, the greater of the stored and the configured number: during an
        outage too large a number costs speed, but too small a number exceeds limits.
        """
        if self._reported is not None:
            return self._reported
        return max((count for count in (self._stored, self._configured) if count), default=None)

    def update(self, workers: int) -> None:
        """Take over the number that the server reports."""
        self._reported = workers
        if self._path is not None and workers != self._stored:
            self._stored = workers
            try:
                _write(self._path, workers)
            except OSError as error:
                logger.warning(
                    "Cannot store the number of workers in %s: %s. If this worker is restarted "
                    "during an outage, it uses an older number, or none",
                    self._path,
                    error,
                )


def _read(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file, or anything else in it."""
    with suppress(OSError, ValueError):
        with path.open("rb") as file:
            number = int(file.read(100))
        if 1 <= number <= _MAX_STORED_COUNT:
            return number
    return None


def _write(path: Path, number: int) -> None:
    """Replace a file at once: a reader finds the old number or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{number}\n")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
