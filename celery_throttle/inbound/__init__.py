"""Limits for incoming requests of a web app: the same limits that tasks have.

:class:`ThrottledWSGI` and :class:`ThrottledASGI` wrap an app, :func:`ratelimit` decorates a view,
and the ``by_...`` functions identify clients. Imports neither Celery nor a web framework.

::

    wsgi.py, asgi.py, decorator.py   the three ways in
    admitter.py      decides about a request, for all three
    rules.py         which limits apply to a request, by which key, at what cost
    identity.py      key functions: by address, header, user, route
    answers.py       header fields and the answers 429 and 503
"""

from __future__ import annotations

from celery_throttle.inbound.answers import Answer, answer_to
from celery_throttle.inbound.asgi import ThrottledASGI
from celery_throttle.inbound.decorator import ratelimit
from celery_throttle.inbound.identity import by_address, by_header, by_parts, by_route, by_user
from celery_throttle.inbound.wsgi import ThrottledWSGI

__all__ = [
    "Answer",
    "ThrottledASGI",
    "ThrottledWSGI",
    "answer_to",
    "by_address",
    "by_header",
    "by_parts",
    "by_route",
    "by_user",
    "ratelimit",
]
