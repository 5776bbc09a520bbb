"""The control class of an app that has no control class of its own."""

from __future__ import annotations

from celery.app.control import Control

from celery_throttle.purge import LinePurgeMixin


class ThrottledControl(LinePurgeMixin, Control):
    """Celery's control class, with purges that include lines."""
