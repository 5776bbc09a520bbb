"""Types of arguments and options of several commands."""

from __future__ import annotations

from typing import Any

import click

from celery_throttle.errors import KeyValueError, LimitError, LimitValueError
from celery_throttle.limits.duration import parse_duration
from celery_throttle.limits.key import check_name, parse_key
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


class DurationType(click.ParamType):
    """A duration such as ``0.5s``, in microseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert text to microseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except LimitValueError as error:
            self.fail(str(error), param, ctx)


class NameType(click.ParamType):
    """The name of a limit."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name."""
        try:
            return check_name(value)
        except LimitError as error:
            self.fail(str(error), param, ctx)


class KeyType(click.ParamType):
    """A key of a limit, as people write it or as commands show it."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Encode the key."""
        try:
            return parse_key(value)
        except KeyValueError as error:
            self.fail(str(error), param, ctx)
