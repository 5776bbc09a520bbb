"""Benchmarks: costs and benefits of celery_throttle, each beside what people use today.

``python -m benchmarks [names...] [--json FILE] [--quick]``. Every benchmark starts its own
servers and workers and compares within one run, so that a slow or busy machine changes no ratio.
"""
