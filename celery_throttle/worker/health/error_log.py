"""Errors that the server replies, logged where an operator sees them, and not with each try."""

from __future__ import annotations

import time

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError, StoreUnavailableError

logger = get_logger(__name__)

#: Seconds between two log lines on errors of one kind.
EVERY = 60.0


class Complaints:
    """Errors of one kind of call.

    Args:
        follows: what follows for the operator, as a sentence.
    """

    def __init__(self, follows: str) -> None:
        self._follows = follows
        self._logged = -EVERY

    def log(self, error: StoreError) -> None:
        """Log an error; one by which the server is out is logged as an outage elsewhere."""
        now = time.monotonic()
        if isinstance(error, StoreUnavailableError) or now - self._logged < EVERY:
            logger.debug("%s %s", self._follows, error)
        else:
            self._logged = now
            logger.error("%s The error: %s", self._follows, error)
