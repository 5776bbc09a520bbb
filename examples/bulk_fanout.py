"""A bulk job: one task per customer under a quota, which does not delay other tasks.

Run::

    celery -A examples.bulk_fanout worker --concurrency 2
    python -m examples.bulk_fanout
"""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_throttle import Throttle

REDIS = "redis://localhost:6379/0"
CUSTOMERS = int(os.environ.get("CUSTOMERS", "200"))

# CELERY_BROKER_URL, CELERY_RESULT_BACKEND and THROTTLE_URL in the environment name other servers.
app = Celery("examples.bulk_fanout", broker=REDIS, backend=REDIS)
throttle = Throttle(app, {"statements": "50/s"})


@app.task(throttle="statements", ignore_result=True)
def send_statement(customer: int) -> None:
    print(f"statement for {customer}")


@app.task
def sign_in(user: str) -> float:
    return time.time()


def main() -> None:
    if not throttle.status().workers:
        raise SystemExit("Start a worker first: celery -A examples.bulk_fanout worker")
    job = throttle.fan_out(send_statement.s(customer) for customer in range(CUSTOMERS))
    print(f"{CUSTOMERS} statements wait, at 50 a second: {job.forecast().seconds:.0f} s")

    # They do not delay other tasks in the same queue.
    for user in ("ada", "grace", "edsger"):
        sent = time.time()
        started = sign_in.delay(user).get(timeout=30)
        print(f"{user} signed in after {started - sent:.3f} s")

    # The API allows more tonight: a higher limit applies at once to all waiting tasks.
    throttle["statements"].define("200/s")
    print(f"at 200 a second: {job.forecast().seconds:.0f} s")
    progress = job.wait()
    throttle["statements"].undefine()
    print(f"{progress.done} statements done")


if __name__ == "__main__":
    main()
