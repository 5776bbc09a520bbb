"""The pattern of pass-culture: a counter for each window of the clock, and a retry later."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from examples.instead_of.shared import client, make_app, recorded

app = make_app("pass_culture-before")

LONGEST_DELAY = 1200


class RateLimitedError(Exception):
    """As many tasks as may have started in this window."""


def count_start(client: Any, name: str, most: int, seconds: int) -> int:
    """Count a start in this window; return by how many starts it is over the limit."""
    window = f"bucket:{name}:{seconds}:{int(time.time()) // seconds}"
    started = int(client.incr(window))
    client.expire(window, 2 * seconds)
    return started - most


def limited_task(most: int, seconds: int) -> Callable[[Any], Any]:
    """Make a task of which only so many start in one window."""

    def decorate(function: Any) -> Any:
        @wraps(function)
        def run(self: Any, **arguments: Any) -> Any:
            over = count_start(client, self.name, most, seconds)
            if over <= 0:
                return function(self, **arguments)
            delay = seconds * (1 + over // most)
            raise self.retry(exc=RateLimitedError(), countdown=min(delay, LONGEST_DELAY))

        make: Any = app.task(bind=True, name="work", retry_backoff=True)
        return make(run)

    return decorate


@limited_task(20, 1)
def work(self: Any, contact: int) -> None:
    """Update a contact in an API."""
    with recorded(self.app.main, "all"):
        pass
