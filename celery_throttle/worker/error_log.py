"""Logs errors that the server replies: each kind once a minute, not with each retry."""

from __future__ import annotations

import time

from celery.utils.log import get_logger

from celery_throttle.errors import StoreUnavailableError, ThrottleError
from celery_throttle.worker import tuning

logger = get_logger(__name__)


class ErrorLog:
    """Logs the errors of one kind of call.

    Args:
        consequence: what follows from the errors for the operator, as a sentence.
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._logged_at = -tuning.ERROR_LOG_SECONDS

    def log(self, error: ThrottleError) -> None:
        """Log an error; not that the server is lost, which is logged as an outage elsewhere."""
        now = time.monotonic()
        recent = now - self._logged_at < tuning.ERROR_LOG_SECONDS
        if recent or isinstance(error, StoreUnavailableError):
            logger.debug("%s %s", self._consequence, error)
        else:
            self._logged_at = now
            logger.error("%s The error: %s", self._consequence, error)
