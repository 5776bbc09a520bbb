"""The web page as a Django view: a Django request becomes a WSGI request."""

from __future__ import annotations

import sys
from collections.abc import Collection
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.admin import ModelAdmin
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from flask import Flask, Request
from werkzeug.wrappers import Response

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.web import create_app
from celery_throttle.web.security import check_names

#: The variable of the WSGI request with the Django request.
_REQUEST = "celery_throttle.django.request"


def make_page(throttle: Limiter, admin: ModelAdmin) -> Flask:
    """Return the page for requests of :func:`reply`, whose users may see the limits.

    Users with the change permission of ``admin`` may carry out the actions of the setting
    ``THROTTLE_WEB_ACTIONS``. With ``THROTTLE_WEB_ARGUMENTS = True``, all users see the arguments of
    waiting tasks. The page has a link to the index of its site.
    """

    def list_allowed(request: Request) -> Collection[str]:
        may_change = admin.has_change_permission(request.environ[_REQUEST])
        return list_actions() if may_change else ()

    def add_home() -> dict[str, Any]:
        site = admin.admin_site
        url = reverse("admin:index", current_app=site.name)
        return {"home": {"name": site.site_header, "url": url}}

    page = create_app(
        throttle,
        auth=lambda request: str(request.environ[_REQUEST].user.get_username()),
        actions=list_allowed,
        show_arguments=getattr(settings, "THROTTLE_WEB_ARGUMENTS", False) is True,
    )
    page.context_processor(add_home)
    page.config["PROPAGATE_EXCEPTIONS"] = True  # Django reports them as those of other views
    return page


def list_actions() -> frozenset[str]:
    """Return the names of actions in the setting ``THROTTLE_WEB_ACTIONS``; default none.

    Raises:
        ImproperlyConfigured: it is no list of names of actions.
    """
    actions = getattr(settings, "THROTTLE_WEB_ACTIONS", None) or ()
    try:
        return check_names(actions)
    except ConfigurationError as error:
        raise ImproperlyConfigured(f"THROTTLE_WEB_ACTIONS = {shown(actions)}: {error}") from error


def reply(page: Flask, request: HttpRequest, path: str) -> HttpResponse:
    """Return the reply of the page to a request; ``path``: the rest of the URL, below the page."""
    response = Response.from_app(page, _make_environ(request, path), buffered=True)
    return HttpResponse(
        response.get_data(), status=response.status_code, headers=dict(response.headers)
    )


def _make_environ(request: HttpRequest, path: str) -> dict[str, Any]:
    """Return the WSGI request. An ASGI server gives Django none, but its META has the same names.

    Host and scheme are those that Django finds, which knows the proxies in front of it. The
    form is the one that Django has read: a middleware may have read the body before.
    """
    form = urlencode(list(request.POST.lists()), doseq=True)
    environ = {
        **request.META,
        "SCRIPT_NAME": _encode(request.path.removesuffix(path).rstrip("/")),
        "PATH_INFO": _encode(f"/{path}"),
        "HTTP_HOST": request.get_host(),
        "CONTENT_TYPE": "application/x-www-form-urlencoded",
        "CONTENT_LENGTH": str(len(form)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": BytesIO(form.encode()),
        "wsgi.input_terminated": True,  # it ends, even if the client sent it in chunks
        "wsgi.errors": sys.stderr,
        _REQUEST: request,
    }
    environ.pop("wsgi.file_wrapper", None)  # only the server itself can send such files
    return environ


def _encode(path: str) -> str:
    """Return a path as WSGI passes it: each byte is a character."""
    return path.encode().decode("latin-1")
