"""Arguments and options of several commands. The shell completes the names of limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from celery_throttle.cli.shared.params import DurationType, KeyType, NameType
from celery_throttle.cli.shared.target import find_target
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.observe.status.stored import read_names
from celery_throttle.tasks.app_limits import AppLimits


def to_seconds(duration: int | None) -> float | None:
    """Convert a :class:`DurationType` to seconds."""
    return None if duration is None else duration / MICROSECONDS


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def make_completer(list_names: Callable[[AppLimits], Iterable[str]]) -> Completer:
    """Return a function that completes names of the server for the shell; quiet on errors."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = [*list_names(find_target(ctx).throttle)]
        except Exception:  # noqa: BLE001  # a traceback would spoil the user's line
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


complete_limit = make_completer(lambda throttle: throttle.run_plan(read_names(throttle.observer)))

Decorator = Callable[[Any], Any]

limit_argument: Decorator = click.argument("limit", type=NameType(), shell_complete=complete_limit)
limit_or_all: Decorator = click.argument(
    "limit", type=NameType(), required=False, shell_complete=complete_limit
)
all_option: Decorator = click.option("--all", "is_all", is_flag=True, help="Apply to all limits.")
key_argument: Decorator = click.argument("key", type=KeyType(), required=False)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option: Decorator = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask for confirmation."
)


def check_limit_or_all(limit: str | None, *, is_all: bool) -> None:
    """Raise UsageError unless either a limit is named, or all are meant."""
    if is_all == (limit is not None):
        raise click.UsageError("give the name of a limit, or --all")


def pause_length_option(command: Any) -> Any:
    """Add the option that says how long a pause lasts."""
    return click.option(
        "--for",
        "lasts",
        type=DurationType(),
        help="How long the pause lasts, such as 10m.  [default: until resume]",
    )(command)


def author_options(command: Any) -> Any:
    """Add the options that say who changes a limit, and why."""
    reason = click.option("--reason", metavar="TEXT", help="Reason, recorded with the change.")
    by = click.option(
        "--by", metavar="NAME", help="Author, recorded with the change.  [default: user@host]"
    )
    return reason(by(command))
