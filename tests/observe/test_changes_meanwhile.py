"""Plans that read, while limits get other clauses between any two of their calls."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.metrics.figures import read_figures
from celery_throttle.observe.metrics.table import find_samples
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.definitions import preview_definition
from celery_throttle.observe.status.limits import read_details, read_page
from celery_throttle.observe.status.tasks import explain_task, read_waiting_tasks
from tests.protocol import SECOND, Make, Protocol

LIMITS = {"api": "1/s", "mail": "1/s", "vendor": "adaptive 1..10/s"}
API, MAIL_KEY, VENDOR = LimitRef("api", None), LimitRef("mail", "k"), LimitRef("vendor", None)
CLAUSES = [Limit.parse("2/s"), Limit.parse("100/h")]

READERS: dict[str, Callable[[Observer], Any]] = {
    "page": read_page,
    "a limit": lambda observer: read_details(observer, API),
    "a key": lambda observer: read_details(observer, MAIL_KEY),
    "an adaptive limit": lambda observer: read_details(observer, VENDOR),
    "metrics": lambda observer: read_figures(observer, 100),
    "a task": lambda observer: explain_task(observer, "api3", lambda _: None),
    "tasks": lambda observer: read_waiting_tasks(observer, API, lambda _: None),
    "a preview": lambda observer: preview_definition(observer, API, CLAUSES),
}


class Interrupted:
    """Runs a plan, and does something before one of its calls."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self.number = number
        self.action = action
        self.calls = 0

    def run(self, plan: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        reply = None
        while True:
            try:
                call = plan.send(reply)
            except StopIteration as end:
                return end.value
            if self.calls == self.number:
                self.action()
            self.calls += 1
            reply = yield call


def fill(lines: Protocol) -> None:
    lines.add_worker()
    lines.limiter["vendor"].try_acquire()
    for number in range(4):
        lines.park(f"api{number}", ["api"])
        lines.park(f"mail{number}", [("mail", "k")])
        lines.park(f"vendor{number}", ["vendor"])
    lines.now += SECOND


@pytest.mark.parametrize("reader", READERS)
def test_limits_get_other_clauses_between_two_calls(make: Make, client: Any, reader: str) -> None:
    number, calls = 0, 1
    while number < calls:
        client.flushdb()
        lines = make(LIMITS)
        fill(lines)

        def redefine(limiter: Any = lines.limiter) -> None:
            for name in LIMITS:
                limiter[name].define(CLAUSES)

        interrupted = Interrupted(number, redefine)
        plan = READERS[reader](lines.limiter.observer)
        found = lines.limiter.run_plan(interrupted.run(plan))
        if reader == "metrics":
            assert find_samples({"": found})["limit_units_per_second"]
        number, calls = number + 1, interrupted.calls
