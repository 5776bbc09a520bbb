"""Retries calls while the limits server cannot be reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from celery_throttle.errors import StoreUnavailableError

T = TypeVar("T")

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)

RETRY_TIMEOUT_SECONDS = 60.0
RETRY_INTERVAL_SECONDS = 1.0


def retry_outage(action: Callable[[], T], caller: str) -> T:
    """Run an action of a caller (for the log), again and again while the server is lost.

    Raises:
        StoreUnavailableError: the server was lost for ``RETRY_TIMEOUT_SECONDS``.
    """
    deadline, logged = time.monotonic() + RETRY_TIMEOUT_SECONDS, False
    while True:
        try:
            return action()
        except StoreUnavailableError as error:
            if time.monotonic() > deadline:
                raise
            if not logged:
                logger.warning(
                    "%s waits for the server of its limits, for %.0f s at most: %s",
                    *(caller, RETRY_TIMEOUT_SECONDS, error),
                )
            logged = True
        time.sleep(RETRY_INTERVAL_SECONDS)
