"""Types of options of several commands."""

from __future__ import annotations

from typing import Any

import click

from celery_throttle.errors import LimitError
from celery_throttle.limits.limit import Limit


class LimitType(click.ParamType):
    """A limit as users write it."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert text to a limit."""
        try:
            return Limit.of(value)
        except LimitError as error:
            self.fail(str(error), param, ctx)
