"""A server that is out may come back soon: what follows a fan-out waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from celery_throttle.errors import StoreUnavailableError

T = TypeVar("T")

#: Not Celery's: of these, a script that sets no logging up would show nothing, not even a warning.
logger = logging.getLogger(__name__)

#: Seconds for which a server that is out is waited for, and between two tries.
PATIENCE, AGAIN = 60.0, 1.0


def insist(action: Callable[[], T], name: str) -> T:
    """Do something for a fan-out as often as needed.

    Raises:
        StoreUnavailableError: the server was out for a minute.
    """
    till, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            return action()
        except StoreUnavailableError as error:
            if time.monotonic() > till:
                raise
            if not told:
                logger.warning(
                    "Fan-out %s waits for the server of its limits, for %.0f s at most: %s",
                    *(name, PATIENCE, error),
                )
            told = True
        time.sleep(AGAIN)
