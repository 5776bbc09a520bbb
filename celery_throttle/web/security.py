"""Who may see the pages, who may change what, and what keeps other sites out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from hmac import compare_digest
from urllib.parse import urlsplit

from flask import Request, Response, g
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import BadRequest, Forbidden, Unauthorized

from celery_throttle.errors import ConfigurationError, shown

#: Returns the name of the user of a request, or whether the request is allowed.
Auth = Callable[[Request], object]

#: The names of allowed actions, or a function that returns those of a request; None: no action.
AllowedActions = Collection[str] | Callable[[Request], Collection[str] | None]

ACTIONS = ("pause", "resume", "define", "undefine", "reset", "drop", "move", "drain", "cancel")

#: The hosts by which a browser on this machine names the machine.
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

_HEADERS = {
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def check_names(actions: Collection[str] | None) -> frozenset[str]:
    """Return names of actions as a set; raise ConfigurationError if one is unknown."""
    if actions is None:
        return frozenset()
    if not isinstance(actions, Collection):  # such as the coroutine of an async function
        raise ConfigurationError(f"actions is {shown(actions)}; allowed: a list of names")
    names = [actions] if isinstance(actions, str) else actions
    for name in names:
        if name not in ACTIONS:
            raise ConfigurationError(
                f"action {shown(name)} is unknown; allowed: a list of {', '.join(ACTIONS)}"
            )
    return frozenset(names)


def guard(request: Request, auth: Auth, actions: AllowedActions) -> None:
    """Keep the user of a request, and the allowed actions, for its page.

    Raises:
        Forbidden: the request is not allowed.
        ConfigurationError: ``auth`` or ``actions`` returned a value of a wrong type.
    """
    g.actions = frozenset()
    g.user = user = auth(request)
    if not user or (isinstance(user, str) and not one_line(user)):
        raise Forbidden("You may not see the limits.")
    if user is not True and not isinstance(user, str):
        # A coroutine, a redirect and Flask-Login's anonymous user are all true.
        raise ConfigurationError(
            f"auth returned an object of type {type(user).__name__}; allowed: the name of the "
            "user, True, or None to refuse the request"
        )
    g.actions = check_names(actions(request) if callable(actions) else actions)


def check_action(request: Request, name: str) -> None:
    """Raise Forbidden unless the request may carry out an action, or show its form."""
    if name not in g.actions:
        raise Forbidden(f"You may not carry out the action {name} on this page.")
    if request.method not in ("GET", "HEAD") and not _is_same_origin(request):
        raise Forbidden("This request does not come from this page. Nothing was changed.")


def _is_same_origin(request: Request) -> bool:
    """Whether the browser reports that a page of this server sent a request.

    Over plain HTTP, browsers send no ``Sec-Fetch-Site`` to other machines, but ``Origin``.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    _, _, origin = request.headers.get("Origin", "").partition("://")
    return bool(origin) and origin == request.headers.get("Host")


def author_name() -> str:
    """Return the author of the changes of this request: ``"ann (web)"``."""
    return "web" if g.user is True else f"{one_line(g.user)} (web)"


def one_line(text: str) -> str:
    """Return text without control characters: terminals and logs will show it."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def set_headers(response: Response) -> Response:
    """Add the headers that each response has."""
    response.headers.update(_HEADERS)
    return response


def require_loopback(host: str) -> Auth:
    """Return an ``auth`` that allows requests for this machine, or for the host it listens on.

    It refuses all other names: a foreign site could make its own name resolve to 127.0.0.1, and
    read the page in the browser of a user.
    """
    hosts = {*_LOOPBACK_HOSTS, host}

    def auth(request: Request) -> bool:
        if _read_host(request.environ.get("HTTP_HOST", "")) not in hosts:
            raise BadRequest("This page is for the machine on which it runs: open localhost.")
        return True

    return auth


def _read_host(header: str) -> str | None:
    """Return the host of a header, without its port; None if it has none."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def require_password(password: str) -> Auth:
    """Return an ``auth`` that asks for any user name with this password, by HTTP Basic."""
    expected = password.encode()

    def auth(request: Request) -> str:
        given = request.authorization
        if given is None or given.type != "basic":
            raise _unauthorized("The page needs a password.")
        if not compare_digest((given.password or "").encode(), expected):
            raise _unauthorized("The password is wrong.")
        return given.username or "anonymous"

    return auth


def _unauthorized(description: str) -> Unauthorized:
    challenge = WWWAuthenticate("basic", {"realm": "celery_throttle", "charset": "UTF-8"})
    return Unauthorized(description, www_authenticate=challenge)
