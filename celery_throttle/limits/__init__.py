"""What users write about limits, as immutable values.

Limits and their text, rates, costs, keys, requirements and decisions. Nothing here talks to a
server or knows Celery. May import :mod:`celery_throttle.errors` only.
"""
