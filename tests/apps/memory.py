"""Limits in the memory of one process, which a worker cannot use."""

from __future__ import annotations

import os

from celery import Celery

from celery_throttle import Throttle

app = Celery("memory", broker=os.environ.get("CELERY_BROKER_URL"))
throttle = Throttle(app, {"api": "1/s"}, url="memory://")
