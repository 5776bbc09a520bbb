"""Celery messages as they wait in a line: packed, with their broker, queue and priority."""
