"""Forecasts: when what waits now will have been started, if nothing is added or changed.

::

    outlook.py   plans: reads what waits, and what limits could give
    foresee.py   what is wanted of that, and what is told: Forecast
    supplies.py  what a limit gives from now on
    fluid.py     tasks as a fluid, limits as what lets it through
    alike.py     lines that are served alike, taken together
"""

from __future__ import annotations

from celery_throttle.forecasts.foresee import Forecast

__all__ = ["Forecast"]
