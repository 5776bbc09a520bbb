"""Simulations: what limits do with a trace of arrivals, computed without a server.

The decisions are those of :mod:`celery_throttle.algorithms`, which agrees with the scripts on the
server step by step. Times are whole microseconds.
"""
