"""The commands ``celery -A shop throttle ...`` and ``celery-throttle ...``.

Imports any package. This module imports little, as Celery imports it at each call of ``celery``: a
module of commands is imported when one of them is used.
"""

from __future__ import annotations

import click

from celery_throttle.cli.groups import LazyGroup

#: The module of each command, in the order of the help.
_COMMANDS = {
    "ls": "status",
    "show": "status",
    "why": "tasks",
    "waiting": "tasks",
    "top": "top",
    "pause": "pauses",
    "resume": "pauses",
    "define": "definitions",
    "undefine": "definitions",
    "reset": "definitions",
    "drain": "removal",
    "move": "removal",
    "drop": "removal",
    "fanouts": "fan_outs",
    "fanout": "fan_outs",
    "history": "history",
    "report": "report",
    "check": "rules",
    "diff": "rules",
    "apply": "rules",
    "dump": "rules",
}

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, modules=_COMMANDS, context_settings=_HELP_OPTIONS)
def throttle() -> None:
    """See and change limits, and what waits for them."""


@click.group(
    cls=LazyGroup,
    modules={"demo": "demo", "simulate": "simulate", **_COMMANDS},
    context_settings=_HELP_OPTIONS,
)
@click.version_option(package_name="celery-global-throttle")
@click.option(
    "--url",
    envvar="THROTTLE_URL",
    help="The server of the limits; also read from THROTTLE_URL.",
)
@click.option("--prefix", help="The prefix of its keys, if the app sets throttle_prefix.")
def main(url: str | None, prefix: str | None) -> None:
    """Global rate limits for Celery.

    Commands other than demo, simulate and check need the server of the limits. For those that need
    the app as well: celery -A shop throttle.
    """
