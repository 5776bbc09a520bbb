"""Tasks with quotas: charges under one limit, reminders under it and a limit per tenant.

Run a worker, then the program::

    celery -A examples.quotas worker --concurrency 2
    python -m examples.quotas
"""

from __future__ import annotations

import os
import time

from celery import Celery, group

from celery_throttle import Throttle

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
STORE = os.environ.get("THROTTLE_URL", BROKER)  # the broker itself, if that is Redis

app = Celery("examples.quotas", broker=BROKER, backend=STORE)
throttle = Throttle(app, {"stripe": "20/s burst 5", "mail": "5/s"}, url=STORE)


@app.task(throttle="stripe")
def charge(order: int) -> float:
    return time.time()


@app.task(throttle=["stripe", "mail:{tenant}"])
def remind(tenant: str, order: int) -> float:
    return time.time()


def main() -> None:
    tasks = [charge.s(order) for order in range(20)]
    tasks += [remind.s(tenant, order) for order in range(5) for tenant in ("acme", "globex")]
    began = time.time()
    ends = group(tasks).apply_async().get(timeout=60)
    took = max(ends) - began
    print(f"{len(ends)} tasks in {took:.1f} s: 20 a second, and 5 a second to each tenant")


if __name__ == "__main__":
    main()
