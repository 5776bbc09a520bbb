"""Finds the limits of a Django project: those of its Celery app."""

from __future__ import annotations

from typing import Any

from celery import Celery, _state
from celery.app.utils import find_app
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from celery_throttle.errors import shown
from celery_throttle.tasks.app_limits import AppLimits


def find_throttle() -> AppLimits:
    """Return the limits of the app in the setting ``THROTTLE_APP``, or of Celery's default app.

    Raises:
        ImproperlyConfigured: there is no such app, or it has no limits.
    """
    name = getattr(settings, "THROTTLE_APP", None)
    app: Any = _default_app() if name is None else _find_app(name)
    throttle = getattr(app, "throttle", None)
    if not isinstance(throttle, AppLimits):
        raise ImproperlyConfigured(
            f"Celery app {app.main!r} has no limits; add Throttle(app), or set THROTTLE_APP to "
            "the app that has them"
        )
    return throttle


def _default_app() -> Celery:
    # current_app differs between threads, and creates an app if there is none.
    app: Celery | None = _state.default_app  # type: ignore[attr-defined]  # its stubs lack it
    if app is None:
        raise ImproperlyConfigured(
            "No Celery app is imported when Django starts; import it in __init__.py of the project "
            'package, or set THROTTLE_APP, for example to "shop.celery:app"'
        )
    return app


def _find_app(name: Any) -> Celery:
    try:
        app = find_app(name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ImproperlyConfigured(f"THROTTLE_APP = {shown(name)}: {error}") from error
    if not isinstance(app, Celery):
        raise ImproperlyConfigured(
            f"THROTTLE_APP = {shown(name)} is no Celery app; allowed: the name of one, such as "
            '"shop.celery:app"'
        )
    return app
