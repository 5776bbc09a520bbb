"""The module that `imports` names."""

from __future__ import annotations

from celery_throttle import Throttle
from tests.apps.foreign.app import app

Throttle(app)
