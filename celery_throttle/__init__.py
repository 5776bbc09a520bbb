"""Global rate limits for Celery, decided in Redis or Valkey.

``Throttle`` needs Celery; ``Limiter`` does not and is what web views and scripts use.
"""

from __future__ import annotations

from celery_throttle.app import Throttle
from celery_throttle.errors import (
    ConfigurationError,
    CostError,
    FanOutError,
    KeysFullError,
    KeyTemplateError,
    KeyValueError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    QueueFullError,
    StoreError,
    StoreUnavailableError,
    Throttled,
    ThrottleError,
    UnknownFanOutError,
    UnknownLimitError,
    WaitTooLongError,
)
from celery_throttle.forecasts.solver import Forecast
from celery_throttle.limiter import Limiter
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Heard
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency, Rate
from celery_throttle.misspellings import ThrottleWarning
from celery_throttle.signals import task_released, task_throttled, throttle_mode_changed
from celery_throttle.tasks.task import ThrottledTask

__all__ = [
    "Calendar",
    "Concurrency",
    "ConfigurationError",
    "CostError",
    "Decision",
    "FanOutError",
    "Forecast",
    "Heard",
    "KeyTemplateError",
    "KeyValueError",
    "KeysFullError",
    "Limit",
    "LimitError",
    "LimitSyntaxError",
    "LimitValueError",
    "Limiter",
    "QueueFullError",
    "Rate",
    "StoreError",
    "StoreUnavailableError",
    "Throttle",
    "ThrottleError",
    "ThrottleWarning",
    "Throttled",
    "ThrottledTask",
    "UnknownFanOutError",
    "UnknownLimitError",
    "WaitTooLongError",
    "task_released",
    "task_throttled",
    "throttle_mode_changed",
]
