"""Limits played over a trace of arrivals, without a server: what each of them would have done.

::

    times.py      times and durations as users write them
    traces.py     when requests arrive, read from a file
    generated.py  the same, generated from a short text
    run.py        plays a trace against one limit
    figures.py    what follows: admitted, refused, fullest window, waits
    memory.py     what one key of the limit takes on a real server
    views.py      tables for people, JSON for programs
    plot.py       the picture (the only module that needs ``matplotlib``)

The decisions are those of :mod:`celery_throttle.algorithms`, which agrees with the scripts on the
server step by step. Times are whole microseconds.
"""

from __future__ import annotations

import click

MICROSECONDS = 1_000_000


class SimulateError(click.ClickException):
    """What keeps a simulation from running, for the person who started it."""
