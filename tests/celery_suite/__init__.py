"""Celery's own integration suite, run with and without limits: ``make celery-suite``."""
