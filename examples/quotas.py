"""Tasks with quotas: charges under one limit, reminders under it and a limit per tenant.

Run a worker, then the program::

    celery -A examples.quotas worker --concurrency 2
    python -m examples.quotas
"""

from __future__ import annotations

import time

from celery import Celery, group

from celery_throttle import Throttle

REDIS = "redis://localhost:6379/0"

# CELERY_BROKER_URL, CELERY_RESULT_BACKEND and THROTTLE_URL in the environment name other servers.
app = Celery("examples.quotas", broker=REDIS, backend=REDIS)
# A sandbox of Stripe allows 25 requests a second, in total and at each endpoint. Requests arrive a
# few milliseconds earlier or later than they were admitted: leave a margin.
throttle = Throttle(app, {"stripe": "23/s", "mail": "5/s"})


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
    print(f"{len(ends)} tasks in {took:.1f} s: 23 a second, and 5 a second to each tenant")


if __name__ == "__main__":
    main()
