"""Forecasts: when the waiting tasks will have started, if nothing is added or changed.

Imports ``operations`` and what is below it.

::

    reader.py    plans that read the waiting tasks and the capacity of their limits
    solver.py    Forecast, computed from what was read
    capacity.py  the capacity of a limit from now on
    fluid.py     tasks as a fluid that drains through limits
    merge.py     similar lines, taken together
"""

from __future__ import annotations

from celery_throttle.forecasts.solver import Forecast

__all__ = ["Forecast"]
