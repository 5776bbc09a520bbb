"""Limits, rates, costs, keys, requirements and decisions, as immutable values.

Nothing here knows Celery, and only ``limits/rules/file.py`` does I/O: it reads a rules file. May
import :mod:`celery_throttle.errors` only.
"""
