"""The control class of an app with limits, unless it has one of its own."""

from __future__ import annotations

from celery.app.control import Control

from celery_throttle.purge import PurgesLines


class ThrottledControl(PurgesLines, Control):
    """Celery's control class, with purges that reach what waits in lines."""
