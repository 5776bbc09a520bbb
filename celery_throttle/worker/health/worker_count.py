"""The number of workers that share the limits, as far as one worker knows it.

A worker that starts while the server of the limits is lost goes by the number that it heard before
it was restarted: that is kept in a file beside the one in which Celery keeps a worker's state.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from celery.utils.log import get_logger

logger = get_logger(__name__)

#: Added to the name of Celery's file.
SUFFIX = ".throttle"

#: A larger number in the file is damage.
_MOST = 1_000_000


class FleetSize:
    """The number, of one worker.

    Args:
        state_db: path of Celery's file (``--statedb``, ``worker_state_db``); without one the number
            is not kept.
        assumed: the number that the settings say, if they do.
    """

    def __init__(self, state_db: str | None, assumed: int | None) -> None:
        self._path = Path(f"{state_db}{SUFFIX}") if state_db else None
        self._kept = None if self._path is None else _read(self._path)
        self._assumed = assumed
        self._heard: int | None = None

    @property
    def is_heard(self) -> bool:
        """Whether the server has told it since this worker started."""
        return self._heard is not None

    @property
    def known(self) -> int | None:
        """The number that was heard last, this worker included; None if nothing is known.

        Before anything was heard, it is the greater of the number that was kept and of that of the
        settings: too large a number costs speed during an outage, too small a one exceeds limits.
        """
        if self._heard is not None:
            return self._heard
        return max((one for one in (self._kept, self._assumed) if one), default=None)

    def hear(self, workers: int) -> None:
        """Take note of the number that the server tells."""
        self._heard = workers
        if self._path is not None and workers != self._kept:
            self._kept = workers
            try:
                _write(self._path, workers)
            except OSError as error:
                logger.warning(
                    "Cannot keep the number of workers in %s: %s. If this worker is restarted "
                    "while the server of the limits is lost, it goes by an older number, or none",
                    self._path,
                    error,
                )


def _read(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or something else in it."""
    with suppress(OSError, ValueError):
        with path.open("rb") as file:
            number = int(file.read(100))
        if 1 <= number <= _MOST:
            return number
    return None


def _write(path: Path, number: int) -> None:
    """All of it or nothing: who reads meanwhile finds the old number, or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{number}\n")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
