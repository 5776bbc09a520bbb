"""The commands ``celery -A shop throttle ...`` and ``celery-throttle ...``.

Imports any package. This module imports little, as Celery imports it at each call of ``celery``: a
module of commands is imported when one of them is used.
"""

from __future__ import annotations

import click

from celery_throttle.cli.shared.groups import LazyGroup

#: The module of each command, in the order of the help.
_COMMANDS = {
    "ls": "show.status",
    "show": "show.status",
    "why": "show.tasks",
    "waiting": "show.tasks",
    "top": "show.top",
    "pause": "change.pauses",
    "resume": "change.pauses",
    "define": "change.definitions",
    "undefine": "change.definitions",
    "reset": "change.definitions",
    "drain": "change.removal",
    "move": "change.removal",
    "drop": "change.removal",
    "purge": "change.removal",
    "fanouts": "change.fan_outs",
    "fanout": "change.fan_outs",
    "history": "show.history",
    "report": "show.report",
    "metrics": "serve.metrics",
    "web": "serve.web",
    "check": "change.rules",
    "diff": "change.rules",
    "apply": "change.rules",
    "dump": "change.rules",
}

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


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
