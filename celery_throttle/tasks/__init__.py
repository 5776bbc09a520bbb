"""Celery tasks: what they declare about their limits, and limits that a task body requests."""
