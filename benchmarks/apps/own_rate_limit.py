"""Celery's own ``rate_limit``, which each worker enforces for itself."""

from __future__ import annotations

from celery import Celery

from benchmarks.apps.tasks import SETTINGS, define

app = Celery("own_rate_limit", broker=SETTINGS["broker"])
define(app, limited={"rate_limit": SETTINGS["api"]}, keyed={})
