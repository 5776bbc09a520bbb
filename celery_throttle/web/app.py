"""The WSGI app: its pages, error pages and conditional responses."""

from __future__ import annotations

from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial

from flask import Flask, Response, render_template, request
from werkzeug.exceptions import BadRequest, HTTPException

from celery_throttle.errors import (
    ConfigurationError,
    KeyValueError,
    LimitError,
    StoreError,
    ThrottleError,
    UnknownFanOutError,
    UnknownLimitError,
    shown,
)
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.key import format_key
from celery_throttle.observe import status_text, text
from celery_throttle.observe.status.stored import read_names
from celery_throttle.web.action_pages import add_actions
from celery_throttle.web.pages import PAGES
from celery_throttle.web.security import AllowedActions, Auth, check_names, guard, set_headers
from celery_throttle.web.site import Site

#: The status of an error; the first class that matches counts, 503 if none does.
_STATUSES: tuple[tuple[type[ThrottleError], int], ...] = (
    (UnknownLimitError, 404),
    (UnknownFanOutError, 404),
    (KeyValueError, 400),
    (LimitError, 400),
    (ConfigurationError, 500),
)

_UNAVAILABLE = 503
_SIMILAR_NAMES = 3

#: The most bytes of a request. Forms are much shorter.
MAX_REQUEST_BYTES = 1 << 20


def create_app(
    throttle: Limiter,
    *,
    auth: Auth,
    actions: AllowedActions = (),
    show_arguments: bool = False,
) -> Flask:
    """Return a WSGI app with the pages of all limits. They change nothing without ``actions``.

    Mount it in a web app, behind the login of that app, or give it to any WSGI server. Needs the
    extra ``web``.

    Args:
        throttle: The :class:`~celery_throttle.Throttle` of an app, or a
            :class:`~celery_throttle.Limiter`. A limiter knows no names of tasks and no states of
            results.
        auth: A function that is called with each request, a ``flask.Request``, before anything
            is read. It returns the name of the user, who is the author of changes, or True for a
            user without a name. For None, False or an empty name, the answer is 403. For any other
            object, such as a coroutine, it is 500. It may raise an exception of
            ``werkzeug.exceptions``.
        actions: The names of the actions that all users may carry out, of ``pause``, ``resume``,
            ``define``, ``undefine``, ``reset``, ``drop``, ``move``, ``drain`` and ``cancel``; or a
            function that is called with each request, after ``auth``, and returns the names for
            its user. Default: none. ``drop``, ``move``, ``drain`` and all actions of fan-outs need
            a Throttle.
        show_arguments: Whether the page of a waiting task shows its arguments: the shortened text
            that Celery sends with them. Default: False. Needs a Throttle.

    Returns:
        The ``flask.Flask``.

    Raises:
        MissingExtraError: The extra is not installed.
        ConfigurationError: The name of an action is unknown.

    Example:
        ::

            page = create_app(throttle, auth=lambda request: request.environ.get("REMOTE_USER"))
    """
    app = Flask(__name__)
    app.response_class = _Response
    app.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    app.url_map.merge_slashes = False  # it would redirect to the host that the request names
    app.jinja_options = {"trim_blocks": True, "lstrip_blocks": True}
    site = Site(throttle, show_arguments=show_arguments)
    for rule, view in PAGES.items():
        app.add_url_rule(rule, view.__name__, partial(view, site))
    add_actions(app, site)
    app.jinja_env.globals.update(
        format_key=format_key, status_text=status_text, text=text, after=_after
    )
    app.jinja_env.filters["without_broker"] = site.without_broker
    allowed = actions if callable(actions) else check_names(actions)
    app.before_request(_refuse_bad_host)
    app.before_request(lambda: guard(request, auth, allowed))
    app.after_request(_make_conditional)
    app.after_request(set_headers)
    app.register_error_handler(ThrottleError, _show_throttle_error)
    app.register_error_handler(UnknownLimitError, partial(_show_unknown_limit, site))
    app.register_error_handler(HTTPException, _show_http_error)
    return app


class _Response(Response):
    """A page. Text that UTF-8 cannot encode, such as an odd byte in a reason, is escaped."""

    def set_data(self, value: bytes | str) -> None:
        if isinstance(value, str):
            value = value.encode("utf-8", "backslashreplace")
        super().set_data(value)


def _refuse_bad_host() -> Response | None:
    """Refuse a ``Host`` that cannot be part of a URL: then no page, not even of an error, can."""
    error = request.routing_exception
    return Response(error.description, 400) if isinstance(error, BadRequest) else None


def _make_conditional(response: Response) -> Response:
    """Reply 304 to a poll if the page is the same as before."""
    if response.is_sequence and response.status_code == 200:  # noqa: PLR2004  # a page
        response.add_etag()
        response.make_conditional(request)
    return response


def _show_throttle_error(error: ThrottleError) -> tuple[str, int]:
    code = next((code for kind, code in _STATUSES if isinstance(error, kind)), _UNAVAILABLE)
    return _show_error(code, str(error), is_outage=isinstance(error, StoreError)), code


def _show_unknown_limit(site: Site, error: UnknownLimitError) -> tuple[str, int]:
    """Name the limits of the server with similar names: this process may know none of them."""
    name = (request.view_args or {}).get("name")
    try:
        names = {*site.read(read_names), *site.limiter.limits}
    except StoreError:
        name = None
    if name is None:
        return _show_throttle_error(error)
    similar = get_close_matches(name, names, _SIMILAR_NAMES)
    message = f"limit {shown(name)} is not defined"
    return _show_error(404, message, unknown=name, similar=similar), 404


def _show_http_error(error: HTTPException) -> Response:
    page = _show_error(error.code or 0, error.description or error.name)
    return _Response(page, error.code, error.get_headers(), content_type="text/html; charset=utf-8")


def _show_error(code: int, message: str, **more: object) -> str:
    return render_template("error.html", code=code, message=message, **more)


def _after(at: datetime, seconds: float) -> datetime | None:
    """Return the time some seconds after another; None if no calendar has it."""
    try:
        return at + timedelta(seconds=seconds)
    except OverflowError:
        return None
