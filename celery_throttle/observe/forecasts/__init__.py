"""Forecasts: when the waiting tasks will have started, if nothing is added or changed.

::

    reader.py    plans of forecasts
    lines.py     reads the lines of waiting tasks
    states.py    reads what the limits can grant
    solver.py    Forecast, computed from what was read
    merge.py     similar lines, taken together
    fluid.py     tasks as a fluid that drains through limits
    capacity.py  the capacity of a limit from now on
"""

from __future__ import annotations

from celery_throttle.observe.forecasts.solver import Forecast

__all__ = ["Forecast"]
