"""An app whose workers consume the same queue as those of others, without this package."""

from __future__ import annotations

from celery import Celery

app = Celery("unlimited", set_as_current=False)  # reads CELERY_BROKER_URL
