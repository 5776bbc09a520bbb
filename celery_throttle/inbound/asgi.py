"""ThrottledASGI: limits for an ASGI app (Starlette, FastAPI, Django, Quart, ...)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from celery_throttle.inbound.admitter import DECISION, Middleware
from celery_throttle.inbound.answers import Answer, Fields
from celery_throttle.store.steps import arun_steps

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The types of messages that begin an answer.
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")

#: The extension with which a server can refuse a websocket with a whole answer.
_DENIAL = "websocket.http.response"

#: The close code "Try Again Later". Before a websocket is accepted, servers send it as a 403.
_TRY_AGAIN_LATER = 1013


class ThrottledASGI(Middleware[ASGIApp]):
    """An ASGI app that passes allowed requests on to another app, and answers others with 429.

    HTTP requests and websockets are limited; a websocket counts once, when it opens. A slot is held
    until the call of the app ends. The event loop is not blocked, unless a function blocks it;
    functions may be async.

    The arguments ``app``, ``limits``, ``key``, ``cost``, ``max_wait``, ``lease``, ``outage``,
    ``headers`` and ``refused``, their defaults and their errors are those of
    :class:`~celery_throttle.inbound.ThrottledWSGI`. Functions take the scope instead of the
    environ, in which the app finds the Decision. ``refused`` is an ASGI app, for HTTP requests.

    Example:
        ::

            app = ThrottledASGI(app, throttle["web"], key=by_address())
    """

    is_async = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or a websocket. Other scopes are passed on to the app.

        ``scope``, ``receive`` and ``send`` are as ASGI defines them.

        Raises:
            ThrottleError: A function returned no valid limit, key or cost. What a function raises
                is left to the framework.
        """
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        admission = await arun_steps(self._admitter.admit(scope))
        scope = {**scope, DECISION: admission.decision}
        if admission.refusal is not None:
            await self._refuse(admission.refusal.answer, scope, receive, send)
            return
        try:
            await self.app(scope, receive, _add_fields(admission.fields, send))
        finally:
            await arun_steps(self._admitter.release(admission))

    async def _refuse(self, answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            if _DENIAL in (scope.get("extensions") or ()):
                await _send_answer(answer, "websocket.http.response", send)
            else:
                await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
        elif self._refused is not None and answer.limit is not None:
            await self._refused(scope, receive, _add_fields(answer.bodyless_headers, send))
        else:
            await _send_answer(answer, "http.response", send)


async def _send_answer(answer: Answer, kind: str, send: Send) -> None:
    headers = _encode(answer.headers)
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": answer.body})


def _add_fields(fields: Fields, send: Send) -> Send:
    """Return a ``send`` that adds header fields to those of an app."""
    if not fields:
        return send
    encoded = _encode(fields)

    async def sending(message: Message) -> None:
        if message["type"] in _STARTS:
            headers = list(message.get("headers") or ())
            given = {bytes(name).lower() for name, _ in headers}
            added = [one for one in encoded if one[0] not in given]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return sending


def _encode(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in fields]
