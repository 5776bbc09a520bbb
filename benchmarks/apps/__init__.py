"""The Celery apps of the workers: the same three tasks in the three ways that are compared.

A module an app, so that no worker imports what another needs.
"""
