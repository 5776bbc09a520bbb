"""Rules files: limits, weights and routes in TOML, read, compared, written and watched.

May import :mod:`celery_throttle.limits` and :mod:`celery_throttle.errors`; knows neither Celery nor
the server. A rules file is a layer between the limits of the code and those defined at run time.
"""
