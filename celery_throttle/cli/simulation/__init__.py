"""Simulations: what limits do with a trace of arrivals, computed without a server.

::

    command.py    the command, its options and its tables
    traces.py     traces: when requests arrive, generated or read from a file
    run.py        runs a trace against one limit; its figures and charts

The decisions are those of :mod:`celery_throttle.algorithms`, which agrees with the scripts on the
server step by step. Times are whole microseconds.
"""
