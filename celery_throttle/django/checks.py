"""System checks: the limits of all tasks, those of the project's Celery app, and the admin page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from celery import Celery, _state
from celery.app.utils import find_app
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from celery_throttle.errors import shown
from celery_throttle.tasks import validation
from celery_throttle.tasks.app_limits import AppLimits

#: Celery checks a Django project before it imports tasks, unless this variable is set.
_SKIP_CHECKS = "CELERY_SKIP_CHECKS"


def check_limits(**_: Any) -> list[checks.CheckMessage]:
    """Check the settings, the routes, the rules file and the limits of all tasks.

    Imports the modules of the tasks, as a worker does, and calls no server.
    """
    try:
        throttle = find_throttle()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="celery_throttle.E001")]
    hint = "Workers do not start before this mistake is corrected."
    return [
        *_import_tasks(throttle.app),
        *(
            checks.Error(text, hint=hint, id="celery_throttle.E002")
            for text in validation.list_mistakes(throttle)
        ),
        *(
            checks.Warning(text, id="celery_throttle.W001")
            for text in validation.list_warnings(throttle)
        ),
    ]


def _import_tasks(app: Celery) -> list[checks.CheckMessage]:
    """Import the modules of the tasks; an error is one of the check, which can be silenced."""
    was_set = _SKIP_CHECKS in os.environ
    os.environ.setdefault(_SKIP_CHECKS, "1")  # Celery would run this check again
    try:
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001  # any that a module of the project raises
        text = f"The modules of the tasks cannot be imported: {type(error).__name__}: {error}"
        hint = "Workers do not start with this error."
        return [checks.Error(text, hint=hint, id="celery_throttle.E004")]
    finally:
        if not was_set:
            del os.environ[_SKIP_CHECKS]
    return []


def check_page(**_: Any) -> list[checks.CheckMessage]:
    """Check that the admin, if the project has it, has its page, and the actions of the page."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    if has_page():
        return _check_actions()
    return [
        checks.Warning(
            "The admin has no page of limits: Flask is not installed.",
            hint='pip install "celery-global-throttle[django]"',
            id="celery_throttle.W002",
        )
    ]


def _check_actions() -> list[checks.CheckMessage]:
    if not hasattr(settings, "THROTTLE_WEB_ACTIONS"):
        return []
    from celery_throttle.django.page import list_actions  # noqa: PLC0415  # an extra

    try:
        list_actions()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="celery_throttle.E003")]
    return []


def has_page() -> bool:
    """Whether the packages of the admin page are installed."""
    return find_spec("flask") is not None


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
