"""A web page that shows limits, waiting tasks, fan-outs and workers, and can change them.

Imports the packages up to ``limiter``, Flask and Jinja; not Celery, so that the page of a
:class:`~celery_throttle.Limiter` works without it.

::

    app.py         create_app(): the WSGI app, its error pages and its polled responses
    security.py    headers, users, passwords, allowed actions, and where a request comes from
    site.py        what all pages use: the limiter, names of queues, recent periods
    limits.py      pages of limits: all, one, its keys, its waiting tasks, its report
    tasks.py       the page of one task
    fan_outs.py    the page of fan-outs
    fleet.py       pages of workers and of changes
    paging.py      tables that are shown page by page
    server.py      the page with a server of its own, for the command web
    action_pages.py    the pages of all actions: form, preview, and the change itself
    actions.py     what an action is; limit_actions.py, removal_actions.py and fan_out_actions.py
                   list them
    forms.py       fields of actions, and the values of their texts
    charts.py      bar charts as geometry; templates/charts.html draws them
    templates/     base.html is the frame of all pages; htmx polls its element ``live``
    static/        style.css, page.js, and htmx 4.0.1, unchanged, with its licence
"""

from __future__ import annotations

from celery_throttle.errors import require_extra

with require_extra("flask", "the web page", "web"):
    from celery_throttle.web.app import create_app

__all__ = ["create_app"]
