"""Types of arguments and options of several commands, and the options themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from celery_throttle.cli.target import find_target
from celery_throttle.errors import KeyValueError, LimitError
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import parse_key
from celery_throttle.limits.limit import Limit, check_name
from celery_throttle.simulation import SimulationError
from celery_throttle.simulation.times import parse_duration
from celery_throttle.tasks.app_limits import AppLimits


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
        except SimulationError as error:
            self.fail(error.message, param, ctx)


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


def to_seconds(duration: int | None) -> float | None:
    """Convert a :class:`DurationType` to seconds."""
    return None if duration is None else duration / MICROSECONDS


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def make_completer(list_names: Callable[[AppLimits], Iterable[str]]) -> Completer:
    """Return a function that completes names of the server for the shell, and is quiet on errors."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = [*list_names(find_target(ctx).throttle)]
        except Exception:  # noqa: BLE001  # a traceback would spoil the user's line
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_limit = make_completer(lambda throttle: throttle.run_plan(throttle.observer.limit_names()))

Decorator = Callable[[Any], Any]

limit_argument: Decorator = click.argument("limit", type=NameType(), shell_complete=complete_limit)
key_argument: Decorator = click.argument("key", type=KeyType(), required=False)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option: Decorator = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def author_options(command: Any) -> Any:
    """Add the options that say who changes a limit, and why."""
    reason = click.option("--reason", metavar="TEXT", help="Why; shown with the change.")
    by = click.option("--by", metavar="NAME", help="Who changes it, in place of user@host.")
    return reason(by(command))
