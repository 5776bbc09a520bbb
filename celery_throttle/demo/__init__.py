"""The demo: one limit at work in two real workers, measured and drawn.

::

    run.py        the course of it: start, send, read, show, end
    stage.py      what is started for it, and its end: the server, the workers
    server.py     the private server
    tasks.py      the Celery app of the workers
    setup.py      what the demo and its workers agree on
    record.py     what the workers wrote down, and the figures that follow
    views.py      who is shown what: a picture, lines of text, nothing
    picture.py    the picture (the only module that needs ``rich``)
    charts.py     bars in characters
    processes.py  processes that end with the demo; tether.py ties them

Everything it starts is its own: a private server in a directory of its own, unless a URL was given.
On a server that was given, all names share one random prefix and are deleted at the end.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import click

from celery_throttle.extras import needed


class DemoError(click.ClickException):
    """What keeps the demo from running, for the person who started it."""


def extra(package: str) -> AbstractContextManager[None]:
    """Around the import of an optional package: says how to install it if it is missing."""
    return needed(package, "the demo", "demo")
