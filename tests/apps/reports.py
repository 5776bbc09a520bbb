"""Tasks whose workers report every second."""

from __future__ import annotations

import os

from celery import Celery

from celery_throttle import Throttle

app = Celery("reports", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(task_ignore_result=True, task_default_queue="reports")
throttle = Throttle(app, {"api": "50/s", "tenant": "1000/s burst 1000"}, lease=3)


@app.task(throttle=["api", "tenant:{tenant}"])
def call(tenant: str) -> None:
    """Call an API for a tenant."""
