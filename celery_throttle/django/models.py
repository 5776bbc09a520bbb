"""The model of the admin page. It has no table: limits are stored in Redis."""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):
    """Reads no table, so that ``dumpdata``, which reads all models, works."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Limit(models.Model):  # noqa: DJ008  # it has no rows to name
    """A limit. ``migrate`` creates its permissions, ``view_limit`` and ``change_limit``."""

    objects = _NoRows()

    class Meta:  # noqa: D106  # Django documents it
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change")
