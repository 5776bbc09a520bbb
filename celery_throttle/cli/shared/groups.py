"""Groups of commands that import a command when it is used, and report errors as one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from celery_throttle.cli.shared.exit_codes import as_click_error
from celery_throttle.errors import ThrottleError


class LazyGroup(click.Group):
    """A group of commands.

    Args:
        modules: the module of each command, within this package. The command is the object there
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
        module = import_module(f"celery_throttle.cli.{self._modules[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An error of this package becomes a line and an exit code."""
        # ``celery --no-color`` keeps the option in its own object.
        if getattr(ctx.obj, "no_color", False) or "NO_COLOR" in os.environ:
            ctx.color = False
        try:
            return super().invoke(ctx)
        except ThrottleError as error:
            raise as_click_error(error) from None
