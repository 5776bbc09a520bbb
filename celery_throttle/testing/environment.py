"""Refuses tests that would use a broker or result backend that the settings do not name.

Celery reads these variables each time it connects, and they take precedence over all settings: over
those for tests, and over what a fixture sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

#: By variable: the settings that it overrides; the first that is set counts.
_OVERRIDDEN = {
    "CELERY_BROKER_URL": ("broker_url",),
    "CELERY_BROKER_READ_URL": ("broker_read_url", "broker_url"),
    "CELERY_BROKER_WRITE_URL": ("broker_write_url", "broker_url"),
    "CELERY_RESULT_BACKEND": ("result_backend",),
}

#: The methods by which an app connects to its broker.
_CONNECT = ("connection_for_read", "connection_for_write")


def refuse_overridden_settings(patch: pytest.MonkeyPatch) -> None:
    """Refuse the session if the environment overrides the settings of an app with limits.

    From then on, an app that is made or configured later is refused when it connects.

    Raises:
        UsageError: The environment overrides a setting. The message contains no secrets.
    """
    if not any(map(os.environ.get, _OVERRIDDEN)):
        return
    from celery import Celery  # noqa: PLC0415  # only such a session needs it here

    from celery_throttle.tasks.app_limits import active_throttles  # noqa: PLC0415  # as above

    for throttle in active_throttles():
        found = _find_overridden(throttle.app)
        if found:
            raise pytest.UsageError(found)
    for name in _CONNECT:
        patch.setattr(Celery, name, _checked(getattr(Celery, name)))


def _checked(connect: Callable[..., Any]) -> Callable[..., Any]:
    def checked(app: Any, *args: Any, **options: Any) -> Any:
        found = _find_overridden(app) if hasattr(app, "throttle") else None
        if found:
            pytest.fail(found, pytrace=False)  # no Exception, which the code under test may catch
        return connect(app, *args, **options)

    return checked


def _find_overridden(app: Any) -> str | None:
    """Return what is wrong if the environment overrides a setting of an app, else None."""
    try:
        conf = app.conf
        conf.get("broker_url")  # reads the settings
    except Exception:  # noqa: BLE001  # of the user's settings; the app fails when it is used
        return None
    for variable, names in _OVERRIDDEN.items():
        given = os.environ.get(variable)
        named = next(filter(None, map(conf.get, names)), None)
        if given and named and _text(named) != given:
            from celery_throttle.store.url import safe_url  # noqa: PLC0415  # it imports redis

            return (
                f"{variable}={safe_url(given)} is set in the environment, and Celery prefers it to "
                f"the setting of app {app.main!r}, {safe_url(_text(named))!r}: tests would use "
                "another server than their settings say. Unset the variable, or name its server "
                "in the settings"
            )
    return None


def _text(url: Any) -> str:
    return ";".join(map(str, url)) if isinstance(url, (list, tuple)) else str(url)
