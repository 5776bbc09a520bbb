"""Limits, rates, costs, keys, requirements and decisions, as immutable values.

Nothing here does I/O or knows Celery. May import :mod:`celery_throttle.errors` only.
"""
