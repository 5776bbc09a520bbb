"""The entry point for the ``celery`` command, which imports this at each of its calls.

It also has to know the commands of the workers' remote control: ``celery inspect throttle``.
"""

from __future__ import annotations

from celery_throttle.cli import throttle
from celery_throttle.worker.hooks import remote_control

__all__ = ["remote_control", "throttle"]
