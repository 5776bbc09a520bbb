"""Celery messages as they wait in a line: packed, with their broker, queue and rank.

What depends on the kind of broker: its identity, with virtual hosts and prefixes, in ``broker.py``,
priorities and bindings in ``routing.py``, and confirmations in ``publishing.py``. In the worker,
prefetch slots are in ``worker/waiting/prefetch.py``, and messages that are sent back in
``delayed.py`` beside it.

May import kombu, and nothing of this package but the errors.
"""
