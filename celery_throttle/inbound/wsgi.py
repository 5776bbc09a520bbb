"""ThrottledWSGI: limits for a WSGI app (Flask, Django, Bottle, ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from celery_throttle.inbound.admitter import DECISION, Middleware
from celery_throttle.inbound.answers import Answer, Fields
from celery_throttle.store.steps import run_steps

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

WSGIApp = Callable[..., Iterable[bytes]]


class ThrottledWSGI(Middleware[WSGIApp]):
    """A WSGI app that passes allowed requests on to another app, and answers others with 429.

    The app finds the :class:`~celery_throttle.Decision` about its request in the environ, under
    ``"celery_throttle.decision"``; it is None if no limit applied.

    Args:
        app: The app to limit.
        limits: A handle such as ``throttle["web"]`` or ``throttle["web", "key"]``, or a list of
            handles of one limiter, or a function of the environ that returns either, or None: the
            request is not limited. All of these limits must allow a request, and a refused request
            takes units from none of them. A slot (``"10 at once"``) is held until the answer has
            been sent, or its body has been closed.
        key: A function of the environ that returns the key of each limit without a key, or a dict
            of such functions by the name of the limit; limits that are not in the dict have no key.
            If a function returns None, the request is not limited; if a function of a dict returns
            None, the request is not limited by that limit. Default: no keys.
        cost: Units, or a dict of units by the name of the limit, or a function of the environ that
            returns either; default 1.
        max_wait: The most seconds that a request waits for the limits; default 0.
        lease: Seconds after which a slot is free again if this process dies, 1 to 3600; default 30.
        outage: While the limits server cannot be reached, ``"open"`` passes all requests on
            and ``"closed"`` answers with 503; default ``"open"``.
        headers: Whether answers have the header fields ``RateLimit``, ``RateLimit-Policy`` and
            ``X-RateLimit-...``; default True. Fields that the app sets itself are kept.
        refused: A WSGI app that answers refused requests instead of the problem document; the
            headers of a refusal are added to its answer. Default: the problem document.

    Raises:
        ConfigurationError: An argument is invalid.
        UnknownLimitError: The code does not define a limit of that name.
        LimitError: A limit is named twice, or the cost, the wait or the lease is out of range.

    Example:
        ::

            application = ThrottledWSGI(application, throttle["web"], key=by_address())
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. ``environ`` and ``start_response`` are as WSGI defines them.

        Raises:
            ThrottleError: A function returned no valid limit, key or cost. What a function raises
                is left to the framework.
        """
        admission = run_steps(self._admitter.admit(environ))
        environ[DECISION] = admission.decision
        if admission.refusal is not None:
            return self._refuse(admission.refusal.answer, environ, start_response)
        start = _add_fields(admission.fields, start_response)
        if admission.slot is None:
            return self.app(environ, start)
        try:
            body = self.app(environ, start)
        except BaseException:
            run_steps(self._admitter.release(admission))
            raise
        return _Body(body, lambda: run_steps(self._admitter.release(admission)))

    def _refuse(
        self, answer: Answer, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        if self._refused is not None and answer.limit is not None:
            return self._refused(environ, _add_fields(answer.bodyless_headers, start_response))
        start_response(answer.status_line, list(answer.headers))
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body]


class _Body:
    """The body of an answer. Once it is sent, closed or dropped, it calls ``release``."""

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._pending_release: Callable[[], None] | None = release

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        finally:
            self._release()

    def close(self) -> None:
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._release()

    def _release(self) -> None:
        release, self._pending_release = self._pending_release, None
        if release is not None:
            release()


def _add_fields(fields: Fields, start_response: StartResponse) -> StartResponse:
    """Return a ``start_response`` that adds header fields to those of an app."""
    if not fields:
        return start_response

    def start(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        given = {name.lower() for name, _ in headers}
        added = [one for one in fields if one[0].lower() not in given]
        return start_response(status, [*headers, *added], *([exc_info] if exc_info else ()))

    return start
