"""Celery messages as they wait in a line: packed, with their broker, queue and rank.

May import kombu, and nothing of this package but the errors.
"""
