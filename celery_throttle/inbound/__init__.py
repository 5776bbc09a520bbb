"""Limits for requests that come in: the same ones as tasks have, for a web app.

:class:`ThrottledWSGI` and :class:`ThrottledASGI` go around an app, :func:`throttled` around a view;
``by_...`` say who is asking. Nothing here uses Celery or a web framework.
"""

from __future__ import annotations

from celery_throttle.inbound.answers import Answer, answer_to
from celery_throttle.inbound.asgi import ThrottledASGI
from celery_throttle.inbound.decorator import throttled
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
    "throttled",
]
