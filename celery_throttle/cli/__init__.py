"""The command ``celery-throttle``. Each subcommand is a module here.

Imports any package, and imports what takes long only when a subcommand runs.
"""

from __future__ import annotations

import click

from celery_throttle.cli.demo import demo
from celery_throttle.cli.simulate import simulate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-global-throttle")
def main() -> None:
    """Global rate limits for Celery."""


main.add_command(demo)
main.add_command(simulate)
