"""The commands ``celery -A shop throttle ...`` and ``celery-throttle ...``.

Imports any package. This module imports little, as Celery imports it at each call of ``celery``: a
module of commands is imported when one of them is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from celery_throttle.cli.shared.exit_codes import as_click_error
from celery_throttle.errors import ThrottleError

#: The commands of each module, in the order of the help.
_MODULES = {
    "status": ("ls", "top"),
    "details": ("show", "why", "waiting"),
    "limits": ("pause", "resume", "define", "undefine", "reset"),
    "removal": ("drain", "move", "drop", "purge"),
    "fan_outs": ("fanouts", "fanout"),
    "history": ("history", "report"),
    "workers": ("workers",),
    "shards": ("shards",),
    "serve": ("metrics", "web"),
    "rules": ("check", "diff", "apply", "dump"),
}
_COMMANDS = {name: module for module, names in _MODULES.items() for name in names}

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group of commands that imports a command when it is used, and reports errors as one line.

    ``modules``: the module of each command, within this package. The command is the object there
    that has its name.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of the commands, in the order of the table."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import a command; None if there is none of that name."""
        if cmd_name not in self._modules:
            return None
        module = import_module(f"{__name__}.{self._modules[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An error of this package becomes a line and an exit code."""
        # ``celery --no-color`` keeps the option in its own object.
        if getattr(ctx.obj, "no_color", False) or os.environ.get("NO_COLOR"):
            ctx.color = False
        if isinstance(sys.stdout, TextIOWrapper):  # reasons and names may have odd bytes
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ThrottleError as error:
            raise as_click_error(error) from None


@click.group(cls=LazyGroup, modules=_COMMANDS, context_settings=_HELP_OPTIONS)
def throttle() -> None:
    """Show and change limits and their waiting tasks."""


@click.group(
    cls=LazyGroup,
    modules={"demo": "demo.command", "simulate": "simulation.command", **_COMMANDS},
    context_settings=_HELP_OPTIONS,
)
@click.version_option(package_name="celery-global-throttle")
@click.option(
    "--url",
    envvar="THROTTLE_URL",
    help="URL of the server that keeps the limits.",
    show_envvar=True,
)
@click.option("--prefix", help="Prefix of all keys in Redis, if the app sets throttle_prefix.")
def main(url: str | None, prefix: str | None) -> None:
    """Global rate limits for Celery.

    The commands demo, simulate and check need no server. All others need --url. Commands that need
    the app as well must be run as: celery -A shop throttle COMMAND.
    """
