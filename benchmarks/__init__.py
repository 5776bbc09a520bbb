"""What celery_throttle costs and gives, each figure beside what people use today.

``python -m benchmarks [names...] [--json FILE] [--quick]``. Every benchmark starts servers and
workers of its own and compares within one run, so that a slow or busy machine tells the same story.
"""
