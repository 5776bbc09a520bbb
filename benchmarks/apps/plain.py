"""Celery as it is: no limit on anything."""

from __future__ import annotations

from celery import Celery

from benchmarks.apps.tasks import SETTINGS, define

app = Celery("plain", broker=SETTINGS["broker"])
define(app, limited={}, keyed={})
