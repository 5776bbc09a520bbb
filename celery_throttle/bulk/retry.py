"""Retries calls while the limits server cannot be reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

from celery_throttle.errors import StoreUnavailableError

T = TypeVar("T")

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)

RETRY_TIMEOUT_SECONDS = 60.0
RETRY_INTERVAL_SECONDS = 1.0


def retry_outage(action: Callable[[], T], caller: str, end: float = inf) -> T:
    """Run an action of a caller (for the log), again and again while the server is lost.

    The action may take any time, and goes on where it was if it is run again. ``end``: a time of
    the monotonic clock after which it is not repeated.

    Raises:
        StoreUnavailableError: the server was lost for ``RETRY_TIMEOUT_SECONDS``, or at the end.
    """
    deadline = None
    while True:
        began = time.monotonic()
        try:
            return action()
        except StoreUnavailableError as error:
            now = time.monotonic()
            # The failed call alone may take a minute, and does not show that the server was there.
            is_lost_anew = now - error.waited - began > RETRY_TIMEOUT_SECONDS
            if deadline is None or is_lost_anew:
                deadline = now + RETRY_TIMEOUT_SECONDS
                logger.warning(
                    "%s waits for the server of its limits, for %.0f s at most: %s",
                    *(caller, RETRY_TIMEOUT_SECONDS, error),
                )
            if now >= min(deadline, end):
                raise
        time.sleep(max(0.0, min(RETRY_INTERVAL_SECONDS, end - now)))
