"""Programs of other processes: the Celery apps of workers, the publisher, the driver of clients.

The apps define the same tasks in the ways that are compared, in a module each, so that no worker
imports what only another needs.
"""
