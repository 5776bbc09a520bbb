"""What only the ASGI end does: websockets, slots until the call ends, never in the loop's way."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from celery_throttle.inbound import ThrottledASGI, by_address, by_user
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.testing import ManualClock
from tests.inbound.sites import HERE, Asked, ask_asgi

LIMITS = {"web": "10/m burst 2", "busy": "1 at once"}

START = 1_700_000_000_000_000


@pytest.fixture
async def limiter(redis_url: str) -> AsyncIterator[Limiter]:
    limiter = Limiter(redis_url, LIMITS, clock=ManualClock(START))
    yield limiter
    limiter.store.close()
    await limiter.store.aclose()


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def is_free(limiter: Limiter) -> bool:
    return (await limiter["busy"].apeek()).allowed


async def nothing() -> Any:
    return {"type": "http.request"}


async def swallow(_: Any) -> None:
    pass


# Slots


async def test_a_slot_is_held_until_the_call_ends(limiter: Limiter) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        begun.set()
        await go_on.wait()

    throttled = ThrottledASGI(app, limiter["busy"])
    call = asyncio.create_task(ask_asgi(throttled))
    await begun.wait()
    assert (await ask_asgi(throttled)).status == 429
    go_on.set()
    assert (await call).status == 200
    assert await is_free(limiter)


async def test_a_slot_is_given_back_when_the_app_raises(limiter: Limiter) -> None:
    async def app(*_: Any) -> None:
        raise RuntimeError("app")

    with pytest.raises(RuntimeError, match="app"):
        await ask_asgi(ThrottledASGI(app, limiter["busy"]))
    assert await is_free(limiter)


async def test_a_slot_is_given_back_when_the_client_has_gone(limiter: Limiter) -> None:
    async def gone(_: Any) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await ThrottledASGI(hello, limiter["busy"])(Asked().scope(), nothing, gone)
    assert await is_free(limiter)


async def test_a_slot_is_given_back_when_the_call_is_cancelled_again_and_again(
    limiter: Limiter,
) -> None:
    begun = asyncio.Event()

    async def app(*_: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    call = asyncio.create_task(ask_asgi(ThrottledASGI(app, limiter["busy"])))
    await begun.wait()
    while not call.done():  # as the scopes of anyio do
        call.cancel()
        await asyncio.sleep(0)
    tries = 0
    while not await is_free(limiter):  # long before its lease would run out
        tries += 1
        assert tries < 500
        await asyncio.sleep(0.01)


# Other scopes


async def test_the_life_of_the_app_passes(limiter: Limiter) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # as apps are
        seen.append((scope, receive, send))

    scope = {"type": "lifespan"}
    for _ in range(5):
        await ThrottledASGI(app, limiter["web"])(scope, nothing, swallow)
    assert seen == [(scope, nothing, swallow)] * 5


async def connect(app: Any, **more: Any) -> list[Any]:
    """What the server is told when a websocket opens."""
    sent: list[Any] = []
    events = iter([{"type": "websocket.connect"}])

    async def receive() -> Any:  # as servers are
        return next(events)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(Asked(more=more).scope("websocket"), receive, send)
    assert next(events, None) is None
    return sent


async def accepting(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})


async def test_websockets_are_limited_when_they_open(limiter: Limiter) -> None:
    app = ThrottledASGI(accepting, limiter["web"])
    [accepted] = await connect(app)
    assert accepted["type"] == "websocket.accept"
    assert (b"x-ratelimit-remaining", b"1") in accepted["headers"]
    await connect(app)
    assert await connect(app) == [{"type": "websocket.close", "code": 1013}]
    start, body = await connect(app, extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert body["type"] == "websocket.http.response.body"
    assert b"quota-exceeded" in body["body"]


async def test_a_websocket_holds_its_slot(limiter: Limiter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await accepting(scope, receive, send)
        assert not await is_free(limiter)

    await connect(ThrottledASGI(app, limiter["busy"]))
    assert await is_free(limiter)


# The loop


async def test_waiting_is_not_in_the_loops_way() -> None:
    """A server that does not answer holds up the request, and no other task."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        app = ThrottledASGI(hello, Limiter(url, LIMITS, timeout=60)["web"])
        call = asyncio.create_task(ask_asgi(app))
        connection, _ = await asyncio.to_thread(silent.accept)
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not call.done()
    connection.close()
    assert (await call).status == 200


# Real servers and frameworks


async def test_starlette(limiter: Limiter) -> None:
    applications = pytest.importorskip("starlette.applications")
    httpx = pytest.importorskip("httpx")
    from starlette.authentication import (  # noqa: PLC0415  # may be missing
        AuthCredentials,
        AuthenticationBackend,
        SimpleUser,
    )
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.authentication import AuthenticationMiddleware  # noqa: PLC0415
    from starlette.requests import HTTPConnection  # noqa: PLC0415
    from starlette.responses import PlainTextResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    class Backend(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> Any:
            name = conn.headers.get("X-User")
            return name and (AuthCredentials(), SimpleUser(name))

    async def home(_: Any) -> Any:
        return PlainTextResponse("hello")

    app = applications.Starlette(
        routes=[Route("/", home)],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=Backend()),
            Middleware(
                ThrottledASGI,
                limits=[limiter["web"], limiter["busy"]],
                key={"web": by_user()},
                refused=PlainTextResponse("slow down", 429),
            ),
        ],
    )
    transport = httpx.ASGITransport(app=app, client=(HERE, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert [(await client.get("/")).status_code for _ in range(3)] == [200, 200, 429]
        ann = await client.get("/", headers={"X-User": "ann"})
        assert (ann.status_code, ann.headers["x-ratelimit-remaining"]) == (200, "0")
        refused = await client.get("/")
        assert (refused.text, refused.headers["retry-after"]) == ("slow down", "6")
    assert (await limiter["web", "ann"].apeek(0)).remaining == 1
    assert (await limiter["web", ("anonymous", HERE)].apeek(0)).remaining == 0


async def test_behind_uvicorn(redis_url: str) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    httpx = pytest.importorskip("httpx")
    limiter = Limiter(redis_url, LIMITS, clock=ManualClock(START))
    app = ThrottledASGI(hello, [limiter["web"], limiter["busy"]], key={"web": by_address()})
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        async with httpx.AsyncClient(timeout=30) as client:
            replies = [await client.get(url) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[0].headers["ratelimit"].startswith('"')
        assert 1 <= int(replies[2].headers["retry-after"]) <= 6
        server.should_exit = True
        await asyncio.to_thread(thread.join, 10)
