"""Simulations: what limits do with a trace of arrivals, computed without a server.

::

    command.py    the command and its options
    times.py      times and durations as users write them
    traces.py     traces: when requests arrive, read from a file
    generated.py  traces generated from a short text
    run.py        runs a trace against one limit
    figures.py    admitted, refused, fullest window, waits
    memory.py     the memory of one key of the limit on a real server
    views.py      tables for people, JSON for programs
    plot.py       the plot (the only module that needs ``matplotlib``)

The decisions are those of :mod:`celery_throttle.algorithms`, which agrees with the scripts on the
server step by step. Times are whole microseconds.
"""

from __future__ import annotations

import click


class SimulationError(click.ClickException):
    """The simulation cannot run; the message is for the user."""
