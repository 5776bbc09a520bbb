"""With celery-heimdall: a task over its limit retries."""

from __future__ import annotations

from celery import Celery
from celery_heimdall import HeimdallTask, RateLimit

from benchmarks.apps.tasks import SETTINGS, define

#: Tasks, and whole seconds.
LIMIT = (int(SETTINGS["api"].removesuffix("/s")), 1)

app = Celery("heimdall", broker=SETTINGS["broker"])
#: One limit for all tasks: without a key, each set of arguments has a limit of its own.
HEIMDALL = {"rate_limit": RateLimit(LIMIT), "key": "limited"}
define(app, limited={"base": HeimdallTask, "heimdall": HEIMDALL}, keyed={})
