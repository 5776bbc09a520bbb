"""A web page that shows limits, waiting tasks, fan-outs and workers, and can change them.

Imports the packages up to ``limiter``, Flask and Jinja; not Celery, so that the page of a
:class:`~celery_throttle.Limiter` works without it.

::

    app.py         create_app(): the WSGI app, its error pages and its polled responses
    security.py    headers, users, passwords, allowed actions, and where a request comes from
    server.py      the page with a server of its own, for the command web
    site.py        what all pages use: the limiter, names of queues, recent periods, tables by page
    pages.py       what is shown: limits, tasks, fan-outs, workers and changes
    charts.py      bar charts; templates/charts.html draws them
    action_pages.py  what is changed, by a form, a preview and a confirmation
    actions.py     the actions, with their fields and previews
    templates/     base.html is the frame of all pages; htmx polls its element ``live``
    static/        style.css, page.js, and htmx 4.0.1, unchanged, with its licence
"""

from __future__ import annotations

from celery_throttle.errors import require_extra

with require_extra("flask", "the web page", "web"):
    from celery_throttle.web.app import create_app

__all__ = ["create_app"]
