"""ThrottledASGI: limits around an ASGI app (Starlette, FastAPI, Django, Quart, ...)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from celery_throttle.inbound.admitter import Admission, Door
from celery_throttle.inbound.answers import Answer, Fields
from celery_throttle.inbound.rules import CostSpec, KeySpec
from celery_throttle.inbound.wsgi import DECISION, check_app
from celery_throttle.limiter_core import LimitHandles

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The messages with which an answer begins.
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")

#: The extension by which a server can answer the request of a websocket in full.
_DENIAL = "websocket.http.response"

#: "Try Again Later"; before a websocket is accepted, servers make it a plain 403.
_TRY_AGAIN_LATER = 1013


class ThrottledASGI:
    """An ASGI app that passes on what the limits allow, and answers the rest with 429.

    Requests and websockets are limited, a websocket once, when it opens; a slot is held until the
    app's call ends. It never blocks the event loop, if the key and cost functions do not.

    Args:
        app: the app it goes around.
        limits, max_wait, lease, outage, headers: see
            :class:`~celery_throttle.inbound.ThrottledWSGI`.
        key, cost: see there; functions of the scope.
        refused: an ASGI app that answers in place of the problem document, for requests; the
            headers of a refusal are added. It finds the decision in the scope, as the app does:
            ``"celery_throttle.decision"``.

    Raises:
        ThrottleError: see :class:`~celery_throttle.inbound.ThrottledWSGI`.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: LimitHandles,
        *,
        key: KeySpec | None = None,
        cost: CostSpec = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
        refused: ASGIApp | None = None,
    ) -> None:
        self.app: ASGIApp = check_app(app, "app")
        self._refused: ASGIApp | None = None if refused is None else check_app(refused, "refused")
        self._door = Door.read(
            limits,
            key=key,
            cost=cost,
            max_wait=max_wait,
            lease=lease,
            outage=outage,
            headers=headers,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or a websocket; what else there is passes on."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        admission = await self._door.aadmit(scope)
        scope = {**scope, DECISION: admission.decision}
        if admission.answer is not None:
            await self._turn_away(admission, scope, receive, send)
            return
        try:
            await self.app(scope, receive, _adding(admission.fields, send))
        finally:
            await self._door.arelease(admission)

    async def _turn_away(
        self, admission: Admission, scope: Scope, receive: Receive, send: Send
    ) -> None:
        answer = admission.answer
        assert answer is not None  # noqa: S101  # it is turned away
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            if _DENIAL in (scope.get("extensions") or ()):
                await _answer(answer, "websocket.http.response", send)
            else:
                await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
        elif self._refused is not None and admission.decision is not None:
            await self._refused(scope, receive, _adding(answer.more, send))
        else:
            await _answer(answer, "http.response", send)


async def _answer(answer: Answer, kind: str, send: Send) -> None:
    headers = _as_bytes(answer.headers)
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": answer.body})


def _adding(fields: Fields, send: Send) -> Send:
    """A ``send`` that adds header fields to those that an app gives."""
    if not fields:
        return send
    more = _as_bytes(fields)

    async def sending(message: Message) -> None:
        if message["type"] in _STARTS:
            headers = list(message.get("headers") or ())
            given = {bytes(name).lower() for name, _ in headers}
            added = [one for one in more if one[0] not in given]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return sending


def _as_bytes(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in fields]
