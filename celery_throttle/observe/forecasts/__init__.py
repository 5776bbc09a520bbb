"""Forecasts: when the waiting tasks will have started, if nothing is added or changed.

::

    reader.py    the plans of forecasts; reads the lines of waiting tasks
    states.py    reads what the limits can grant, as capacities
    solver.py    Forecast, computed from what was read
    fluid.py     tasks as a fluid that drains through limits
"""
