"""Forecasts: when what waits now will have been started, if nothing is added or changed.

::

    reader.py    plans that read the waiting tasks and the capacity of their limits
    solver.py    Forecast, and how it follows from what was read
    capacity.py  what a limit gives from now on
    fluid.py     tasks as a fluid, limits as what lets it through
    groups.py    lines that are served alike, taken together
"""

from __future__ import annotations

from celery_throttle.forecasts.solver import Forecast

__all__ = ["Forecast"]
