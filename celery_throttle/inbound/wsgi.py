"""ThrottledWSGI: limits around a WSGI app (Flask, Django, Bottle, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.inbound.admitter import Admission, Door
from celery_throttle.inbound.answers import Fields
from celery_throttle.inbound.rules import CostSpec, KeySpec
from celery_throttle.limiter_core import LimitHandles

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Where an app finds the Decision about its request, in the environ or in the scope.
DECISION = "celery_throttle.decision"


class ThrottledWSGI:
    """A WSGI app that passes on what the limits allow, and answers the rest with 429.

    Args:
        app: the app it goes around.
        limits: ``throttle["web"]``, ``throttle["web", "key"]``, or a list of such, which all have
            to allow: units are taken from all of them or from none. ``"10 at once"`` holds a slot
            until the answer has been sent or its body closed.
        key: a function of the environ that gives the key of each limit that has none of its own, or
            a dict of such by the name of the limit, which leaves the others whole. Where a function
            gives None, the request is not limited; in a dict: not by that limit.
        cost: units, also by the name of the limit, or a function of the environ that gives them;
            default 1.
        max_wait: seconds that a request may wait for the limits at most; default 0.
        lease: seconds after which a slot is free again if this process dies, 1 to 3600; default 30.
        outage: while the server of the limits is lost, ``"open"`` passes all on, ``"closed"``
            answers 503; default ``"open"``.
        headers: whether answers tell of the limits (``RateLimit``, ``RateLimit-Policy``,
            ``X-RateLimit-...``); default True. What the app sets itself is left as it is.
        refused: a WSGI app that answers in place of the problem document; the headers of a refusal
            are added. It finds the decision in the environ, as the app does:
            ``"celery_throttle.decision"``.

    Raises:
        ConfigurationError: an argument is not as above.
        UnknownLimitError: the code defines no limit of that name.
        LimitError: a limit is named twice, or the cost, the wait or the lease is not allowed.
    """

    def __init__(
        self,
        app: WSGIApplication,
        limits: LimitHandles,
        *,
        key: KeySpec | None = None,
        cost: CostSpec = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
        refused: WSGIApplication | None = None,
    ) -> None:
        self.app: WSGIApplication = check_app(app, "app")
        self._refused: WSGIApplication | None = (
            None if refused is None else check_app(refused, "refused")
        )
        self._door = Door.read(
            limits,
            key=key,
            cost=cost,
            max_wait=max_wait,
            lease=lease,
            outage=outage,
            headers=headers,
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        admission = self._door.admit(environ)
        environ[DECISION] = admission.decision
        if admission.answer is not None:
            return self._turn_away(admission, environ, start_response)
        start = _adding(admission.fields, start_response)
        if admission.slot is None:
            return self.app(environ, start)
        try:
            body = self.app(environ, start)
        except BaseException:
            self._door.release(admission)
            raise
        return _Body(body, lambda: self._door.release(admission))

    def _turn_away(
        self, admission: Admission, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        answer = admission.answer
        assert answer is not None  # noqa: S101  # it is turned away
        if self._refused is not None and admission.decision is not None:
            return self._refused(environ, _adding(answer.more, start_response))
        start_response(answer.line, list(answer.headers))
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body]


class _Body:
    """The body of an answer; once it is sent, closed or dropped, it says so."""

    def __init__(self, body: Iterable[bytes], done: Callable[[], None]) -> None:
        self._body = body
        self._done: Callable[[], None] | None = done

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        finally:
            self._is_done()

    def close(self) -> None:
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._is_done()

    def _is_done(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()


def _adding(fields: Fields, start_response: StartResponse) -> StartResponse:
    """A ``start_response`` that adds header fields to those that an app gives."""
    if not fields:
        return start_response

    def start(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        given = {name.lower() for name, _ in headers}
        added = [one for one in fields if one[0].lower() not in given]
        return start_response(status, [*headers, *added], *([exc_info] if exc_info else ()))

    return start


def check_app(app: Any, what: str) -> Any:
    """Return an app if it can be one.

    Raises:
        ConfigurationError: it cannot be called.
    """
    if not callable(app):
        raise ConfigurationError(f"{what} {shown(app)} is no app; allowed: what can be called")
    return app
