"""The configuration of the Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from celery_throttle.django.checks import check_limits, check_page


class ThrottleConfig(AppConfig):
    """The Django app, whose system checks have the tag ``celery``."""

    name = "celery_throttle.django"
    label = "celery_throttle"
    verbose_name = "Celery throttle"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        register(check_limits, "celery")
        register(check_page, "celery")
