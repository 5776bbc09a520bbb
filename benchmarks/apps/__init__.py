"""What other processes run: the Celery apps of the workers, and the driver of HTTP clients.

The apps are the same three tasks in the three ways that are compared, a module each, so that no
worker imports what another needs.
"""
