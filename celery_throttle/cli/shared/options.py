"""Arguments and options of several commands. The shell completes the names of limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import click

from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.errors import ThrottleError
from celery_throttle.limits.duration import MICROSECONDS, parse_duration
from celery_throttle.limits.key import LimitRef, check_name, parse_key
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status.stored import read_names
from celery_throttle.tasks.app_limits import AppLimits

Decorator = Callable[[Any], Any]


class Parsed(click.ParamType):
    """The type of an argument or option that a function of this package parses."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse text."""
        try:
            return self._parse(value)
        except ThrottleError as error:
            self.fail(str(error), param, ctx)


LIMIT = Parsed("limit", Limit.of)
NAME = Parsed("limit", check_name)
KEY = Parsed("key", parse_key)  # as people write it or as commands show it; then encoded


def _parse_ref(text: str) -> LimitRef:
    name, colon, key = text.partition(":")
    return LimitRef(check_name(name), parse_key(key) if colon else None)


REF = Parsed("limit", _parse_ref)
SECONDS = Parsed("duration", lambda text: parse_duration(text) / MICROSECONDS)


class IntervalType(click.FloatRange):
    """The type of a number of seconds to wait, up to an hour. ``least``: the shortest wait."""

    def __init__(self, least: float) -> None:
        super().__init__(least, 3600)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse text; also refuse NaN, which no comparison finds out of range."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number", param, ctx)
        return seconds


def make_completer(
    list_names: Callable[[AppLimits], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes names of the server for the shell; quiet on errors."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = [*list_names(Target(ctx).throttle)]
        except Exception:  # noqa: BLE001  # a traceback would spoil the user's line
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


_complete_limit = make_completer(lambda throttle: throttle.read(read_names).merged())


def limit_argument(kind: click.ParamType = NAME, *, required: bool = True) -> Decorator:
    """Return a decorator that adds the name of a limit."""
    return click.argument("limit", type=kind, required=required, shell_complete=_complete_limit)


def takes_ref(*, key_option: bool = False, or_all: bool = False) -> Decorator:
    """Return a decorator that adds LIMIT, or LIMIT:KEY, and KEY; the command gets them as ``ref``.

    ``key_option``: KEY is an option; ``or_all``: the option ``--all`` may take their place, and
    ``ref`` is None then.
    """

    def decorate(command: Any) -> Any:
        @wraps(command)
        def run(
            *args: Any,
            limit: LimitRef | None,
            key: str | None,
            is_all: bool = False,
            **options: Any,
        ) -> Any:
            if is_all == (limit is not None):
                raise click.UsageError("give the name of a limit, or --all")
            if limit is None or key is None:
                return command(*args, ref=limit, **options)
            if limit.key is not None:
                raise click.UsageError("give the key once: as LIMIT:KEY, or apart from the limit")
            return command(*args, ref=LimitRef(limit.name, key), **options)

        if or_all:
            run = click.option("--all", "is_all", is_flag=True, help="Apply to all limits.")(run)
        if key_option:
            run = click.option("--key", type=KEY, help="Apply to this key of the limit only.")(run)
        else:
            run = click.argument("key", type=KEY, required=False)(run)
        return limit_argument(REF, required=not or_all)(run)

    return decorate


json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option: Decorator = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask for confirmation."
)


def most_option(default: int, rows: str) -> Decorator:
    """Return a decorator that adds the option how many rows to list."""
    return click.option(
        "--most",
        type=click.IntRange(1, 1000),
        default=default,
        show_default=True,
        help=f"Number of {rows} to list.",
    )


def for_option(subject: str, undo: str) -> Decorator:
    """Return a decorator that adds the option how long a change lasts, in seconds."""
    return click.option(
        "--for",
        "lasts",
        type=SECONDS,
        help=f"How long the {subject} lasts, such as 10m.  [default: until {undo}]",
    )


def author_options(command: Any) -> Any:
    """Add the options that say who changes a limit, and why: ``by`` and ``reason``."""
    reason = click.option("--reason", metavar="TEXT", help="Reason, recorded with the change.")
    by = click.option(
        "--by", metavar="NAME", help="Author, recorded with the change.  [default: user@host]"
    )
    return reason(by(command))


def command(*options: Decorator, group: click.Group | None = None) -> Decorator:
    """Return a decorator that makes a command, which gets its target, ``as_json`` and the options.

    ``options``: in the order of the help; ``group``: of the command, if it is not the main one.
    """

    def decorate(function: Any) -> click.Command:
        for add in (pass_target, json_option, *reversed(options)):
            function = add(function)
        return (group.command() if group else click.command())(function)

    return decorate
