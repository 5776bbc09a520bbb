"""The demo: one limit at work in two real workers, measured and drawn.

::

    command.py    the command and its options
    run.py        run_demo(): start, send, read, show, end
    stage.py      starts and ends the server and the workers
    tasks.py      the Celery app of the workers
    setup.py      settings that the demo and its workers share
    record.py     the events of a run, and its figures
    views.py      shows a record: as a picture or as lines of text
    picture.py    the picture (the only module that needs ``rich``)
    charts.py     bar charts of characters

The demo starts a private server in a temporary directory, unless a URL is given. On a given server,
all its keys share a random prefix and are deleted at the end.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import click

from celery_throttle.errors import require_extra


class DemoError(click.ClickException):
    """The demo cannot run; the message is for the user."""


def demo_extra(package: str) -> AbstractContextManager[None]:
    """Context for the import of a package of the extra ``demo``."""
    return require_extra(package, "the demo", "demo")
