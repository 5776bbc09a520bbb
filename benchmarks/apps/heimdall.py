"""With celery-heimdall: a task over its limit retries."""

from __future__ import annotations

from celery import Celery
from celery_heimdall import HeimdallTask, RateLimit

from benchmarks.apps.tasks import SETTINGS, define

#: Tasks, and whole seconds.
LIMIT = (int(SETTINGS["api"].removesuffix("/s")), 1)

app = Celery("heimdall", broker=SETTINGS["broker"])
define(app, limited={"base": HeimdallTask, "heimdall": {"rate_limit": RateLimit(LIMIT)}}, keyed={})
