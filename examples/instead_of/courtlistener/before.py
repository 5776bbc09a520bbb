"""The pattern of courtlistener: a counter that expires, a schedule, and a retry."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from examples.instead_of.shared import client, make_app, recorded

app = make_app("courtlistener-before")


def seconds_to_wait(client: Any, name: str, most: int, seconds: int) -> float:
    """Count a start; return 0.0 if it is allowed, else the seconds until it may be tried again."""
    counter, schedule = f"throttle:{name}", f"throttle:schedule:{name}"
    started = client.get(counter)
    if started is None:
        client.set(counter, 1, ex=seconds)
        return 0.0
    if int(started) < most:
        if client.incr(counter) == 1:  # it has expired since
            client.expire(counter, seconds)
        return 0.0
    now, planned = time.time(), float(client.get(schedule) or 0)
    if planned < now:
        left = client.ttl(counter)
        if left < 0:
            return 0.0
        client.set(schedule, now + left)
        return float(left)
    planned += seconds / most
    client.set(schedule, planned)
    return planned - now


def throttle_task(most: int, seconds: int, key: str) -> Callable[[Callable[..., None]], Any]:
    """Limit the starts of a task for each value of one of its arguments."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(self: Any, **arguments: Any) -> None:
            delay = seconds_to_wait(client, f"{self.name}:{arguments[key]}", most, seconds)
            if delay > 0:
                self.request.retries -= 1  # a wait uses up no retry
                raise self.retry(countdown=delay)
            function(self, **arguments)

        return run

    return decorate


@app.task(bind=True, name="work")
@throttle_task(20, 1, key="court")
def work(self: Any, court: str) -> None:
    """Look a court's documents up."""
    with recorded(self.app.main, court):
        pass
