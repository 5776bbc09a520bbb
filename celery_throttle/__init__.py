"""Global rate limits for Celery, decided in Redis or Valkey.

``Throttle`` needs Celery. ``Limiter`` does not; web views and scripts use it. A name is imported
when it is first used, so a limiter or the pytest plugin does not import Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.bulk.removal.counts import Removal, WaitingCount
    from celery_throttle.clients.sdk import throttled
    from celery_throttle.clients.wrapped import wrap
    from celery_throttle.errors import (
        BlockingWaitError,
        ConfigurationError,
        CostError,
        FanOutError,
        KeysFullError,
        KeyTemplateError,
        KeyValueError,
        LimitError,
        LimitFunctionError,
        LimitSyntaxError,
        LimitValueError,
        MissingExtraError,
        PublishRejectedError,
        QueueFullError,
        QueueNotFoundError,
        RulesError,
        SentRequestsError,
        StoreError,
        StoreUnavailableError,
        Throttled,
        ThrottleError,
        UnknownFanOutError,
        UnknownLimitError,
        WaitTooLongError,
    )
    from celery_throttle.limiter.handle import LimitHandle
    from celery_throttle.limiter.limiter import Limiter
    from celery_throttle.limits.calendar import Calendar
    from celery_throttle.limits.decision import Decision
    from celery_throttle.limits.feedback import Feedback
    from celery_throttle.limits.limit import Limit
    from celery_throttle.limits.rate import Concurrency, Rate
    from celery_throttle.limits.requirement import LimitByKey
    from celery_throttle.observe.forecasts.solver import Forecast
    from celery_throttle.signals import (
        task_admitted,
        task_released,
        task_throttled,
        throttle_mode_changed,
    )
    from celery_throttle.tasks.option_warnings import ThrottleWarning
    from celery_throttle.tasks.task import ThrottledTask

_MODULES = {
    "BlockingWaitError": "errors",
    "Calendar": "limits.calendar",
    "Concurrency": "limits.rate",
    "ConfigurationError": "errors",
    "CostError": "errors",
    "Decision": "limits.decision",
    "FanOutError": "errors",
    "Forecast": "observe.forecasts.solver",
    "Feedback": "limits.feedback",
    "KeyTemplateError": "errors",
    "KeyValueError": "errors",
    "KeysFullError": "errors",
    "Limit": "limits.limit",
    "LimitByKey": "limits.requirement",
    "LimitError": "errors",
    "LimitFunctionError": "errors",
    "LimitHandle": "limiter.handle",
    "LimitSyntaxError": "errors",
    "LimitValueError": "errors",
    "Limiter": "limiter.limiter",
    "MissingExtraError": "errors",
    "PublishRejectedError": "errors",
    "QueueFullError": "errors",
    "QueueNotFoundError": "errors",
    "Rate": "limits.rate",
    "RulesError": "errors",
    "Removal": "bulk.removal.counts",
    "StoreError": "errors",
    "StoreUnavailableError": "errors",
    "Throttle": "app",
    "ThrottleError": "errors",
    "ThrottleWarning": "tasks.option_warnings",
    "Throttled": "errors",
    "ThrottledTask": "tasks.task",
    "UnknownFanOutError": "errors",
    "UnknownLimitError": "errors",
    "SentRequestsError": "errors",
    "WaitTooLongError": "errors",
    "WaitingCount": "bulk.removal.counts",
    "task_admitted": "signals",
    "task_released": "signals",
    "task_throttled": "signals",
    "throttle_mode_changed": "signals",
    "throttled": "clients.sdk",
    "wrap": "clients.wrapped",
}

__all__ = [
    "BlockingWaitError",
    "Calendar",
    "Concurrency",
    "ConfigurationError",
    "CostError",
    "Decision",
    "FanOutError",
    "Feedback",
    "Forecast",
    "KeyTemplateError",
    "KeyValueError",
    "KeysFullError",
    "Limit",
    "LimitByKey",
    "LimitError",
    "LimitFunctionError",
    "LimitHandle",
    "LimitSyntaxError",
    "LimitValueError",
    "Limiter",
    "MissingExtraError",
    "PublishRejectedError",
    "QueueFullError",
    "QueueNotFoundError",
    "Rate",
    "Removal",
    "RulesError",
    "SentRequestsError",
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
    "WaitingCount",
    "task_admitted",
    "task_released",
    "task_throttled",
    "throttle_mode_changed",
    "throttled",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
