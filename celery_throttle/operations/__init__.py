"""Each operation on limits as a plan: which scripts to run, and what their replies mean.

A plan does no I/O itself. May import :mod:`celery_throttle.limits` and
:mod:`celery_throttle.store`.
"""
