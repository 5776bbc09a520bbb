"""A shop whose tasks call two APIs. Its tests, beside it, show how code with limits is tested."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from celery_throttle import Throttle

# Celery prefers CELERY_BROKER_URL to all settings, also to those of tests: hence other names.
app = Celery(
    "shop",
    broker=os.environ.get("SHOP_BROKER_URL", "redis://localhost:6379/0"),
    backend=os.environ.get("SHOP_RESULT_BACKEND", "cache+memory://"),
)
throttle = Throttle(app, {"stripe": "100/m", "mail": "2/s", "reports": "1 at once"})

#: What the APIs were asked for, in place of the APIs.
calls: list[tuple[str, Any]] = []


@app.task(throttle="stripe")
def charge(order_id: int) -> str:
    """Charge an order; the worker starts at most 100 a minute."""
    calls.append(("stripe", order_id))
    return f"charged {order_id}"


@app.task
def remind(customers: list[str]) -> int:
    """Write to customers; each of them gets at most 2 mails a second."""
    for customer in customers:
        throttle["mail", customer].acquire(max_wait=60)
        calls.append(("mail", customer))
    return len(customers)


def report() -> str:
    """Make a report, which takes all memory: one at a time."""
    with throttle["reports"].slot(max_wait=5):
        return "a report"
