"""Limits around a view: of plain functions, and of the views of frameworks."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from math import ceil
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.errors import (
    ConfigurationError,
    KeyTemplateError,
    StoreUnavailableError,
    Throttled,
)
from celery_throttle.inbound import (
    Answer,
    answer_to,
    by_address,
    by_header,
    by_parts,
    by_user,
    ratelimit,
)
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.testing import ManualClock
from tests.docs.child import run_in_child
from tests.inbound.sites import HERE, Asked
from tests.servers.server import Server

START = 1_700_000_000_000_000
LIMITS = {"web": "10/m burst 2", "busy": "1 at once"}

Run = Callable[[Any], Any]


@pytest.fixture(params=["sync", "asyncio"])
def views(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Views]:
    loop = asyncio.new_event_loop() if request.param == "asyncio" else None
    views = Views(Limiter(redis_url, LIMITS, clock=ManualClock(START)), loop)
    yield views
    views.close()


class Views:
    """Makes views of one kind, that are called in one way."""

    def __init__(self, limiter: Limiter, loop: asyncio.AbstractEventLoop | None) -> None:
        self.limiter = limiter
        self._loop = loop

    def limited(self, view: Callable[..., Any], *limits: Any, **options: Any) -> Any:
        """A view with limits, as a function that waits for it."""
        loop = self._loop
        if loop is None:
            return ratelimit(*limits, **options)(view)

        @wraps(view)
        async def aview(*args: Any, **kwargs: Any) -> Any:  # as views are
            return view(*args, **kwargs)

        decorated = ratelimit(*limits, **options)(aview)
        assert inspect.iscoroutinefunction(decorated)
        return lambda *args, **kwargs: loop.run_until_complete(decorated(*args, **kwargs))

    def close(self) -> None:
        self.limiter.store.close()
        if self._loop is not None:
            self._loop.run_until_complete(self.limiter.store.aclose())
            self._loop.close()


def greet(name: str, request: Any = None) -> str:
    return f"hello {name}" if request is None else f"hello {name}, {request}"


def test_a_refusal_is_raised(views: Views) -> None:
    view = views.limited(greet, views.limiter["web"], key=lambda name: name)
    assert [view("ann"), view(name="ann")] == ["hello ann"] * 2
    with pytest.raises(Throttled) as refused:
        view("ann")
    assert refused.value.args == ("web", "ann", 6.0, 0.0)
    assert view("bob") == "hello bob"
    answer = answer_to(refused.value)
    assert (answer.status, answer.retry_after, answer.limit) == (429, 6, "web")
    assert dict(answer.headers)["Retry-After"] == "6"


def test_or_an_answer_is_made_of_it(views: Views) -> None:
    def refused(answer: Answer) -> tuple[int, str]:
        return answer.status, dict(answer.headers)["RateLimit"]

    view = views.limited(greet, views.limiter["web"], refused=refused, cost=2)
    assert view("ann") == "hello ann"
    assert view("ann") == (429, '"web";r=0;t=12')


def test_functions_take_what_they_name(views: Views) -> None:
    seen: list[Any] = []

    def key(request: Any, unit: str = "g") -> Any:
        seen.append((request, unit))
        return request

    def cost(*args: Any, **kwargs: Any) -> int:
        seen.append((args, kwargs))
        return 1

    view = views.limited(greet, views.limiter["web"], key=key, cost=cost)
    view("ann", "there")
    view("ann", request="here")
    assert seen == [
        ("there", "g"),
        (("ann", "there"), {}),
        ("here", "g"),
        (("ann",), {"request": "here"}),
    ]
    view = views.limited(greet, views.limiter["web"], key=lambda: "shared")
    assert [view("ann"), view("bob")] == ["hello ann", "hello bob"]
    with pytest.raises(Throttled, match="shared"):
        view("eve")


def test_limits_of_a_call(views: Views) -> None:
    limiter = views.limiter

    def limits(name: str) -> Any:
        return {"ann": limiter["web", "ann"], "bob": None}[name]

    view = views.limited(greet, limits)
    assert [view(name) for name in ("ann", "ann", "bob", "bob", "bob")][-1] == "hello bob"
    with pytest.raises(Throttled):
        view("ann")
    with pytest.raises(KeyError, match="eve"):
        view("eve")


def test_ready_made_keys_take_the_request(views: Views) -> None:
    view = views.limited(greet, [views.limiter["web"]], key={"web": by_address()})
    for address in (HERE, HERE, "198.51.100.1"):
        view("ann", Asked(address=address).environ())
    with pytest.raises(Throttled):
        view("ann", request=Asked().scope())


def test_no_key_is_no_limit(views: Views) -> None:
    view = views.limited(greet, views.limiter["web"], key=lambda name: name or None)
    assert [view("") for _ in range(5)] == ["hello "] * 5


def test_a_slot_is_held_while_the_view_runs(views: Views) -> None:
    limiter = views.limiter

    def view(fail: bool) -> bool:  # noqa: FBT001  # a view
        if fail:
            raise RuntimeError("view")
        return not limiter["busy"].peek()

    limited = views.limited(view, limiter["busy"])
    assert limited(False)  # noqa: FBT003
    with pytest.raises(RuntimeError, match="view"):
        limited(True)  # noqa: FBT003
    assert limited(False)  # noqa: FBT003
    with limiter["busy"].slot(), pytest.raises(Throttled) as refused:
        limited(False)  # noqa: FBT003
    assert ceil(refused.value.retry_after or 0) == 30  # at the latest: the end of the lease


def test_without_the_server(own_server: Server, views: Views) -> None:
    lost = Limiter(own_server.url, LIMITS, timeout=0.2)
    own_server.stop()
    assert views.limited(greet, lost["web"])("ann") == "hello ann"
    with pytest.raises(StoreUnavailableError) as error:
        views.limited(greet, lost["web"], outage="closed")("ann")
    assert answer_to(error.value).status == 503
    view = views.limited(greet, lost["busy"], outage="closed", refused=lambda answer: answer.status)
    assert view("ann") == 503


# What only one kind has


@pytest.fixture
async def limiter(redis_url: str) -> AsyncIterator[Limiter]:
    limiter = Limiter(redis_url, LIMITS, clock=ManualClock(START))
    yield limiter
    limiter.store.close()
    await limiter.store.aclose()


async def test_the_answer_may_be_awaited(limiter: Limiter) -> None:
    async def refused(answer: Answer) -> int:
        await asyncio.sleep(0)
        return answer.status

    @ratelimit(limiter["web"], cost=2, refused=refused)
    async def view() -> int:
        await asyncio.sleep(0)
        return 200

    assert [await view(), await view()] == [200, 429]


async def test_a_slot_is_held_until_the_awaitable_of_a_view_is_done(limiter: Limiter) -> None:
    """Such as that of `dispatch` of a class-based view of Django with async handlers."""

    async def handle() -> bool:
        await asyncio.sleep(0)
        return (await limiter["busy"].apeek()).allowed

    def dispatch() -> Any:
        return handle()

    assert not await ratelimit(limiter["busy"])(dispatch)()
    assert limiter["busy"].peek()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="inspect knows the mark")
async def test_a_view_that_is_marked_as_async_waits_for_the_limits_in_the_loop(
    limiter: Limiter,
) -> None:
    """As Django marks class-based views with async handlers."""
    sync = pytest.importorskip("asgiref.sync")

    async def handle() -> int:
        await asyncio.sleep(0)
        return 200

    def dispatch() -> Any:
        return handle()

    view: Any = ratelimit(limiter["busy"])(sync.markcoroutinefunction(dispatch))
    assert inspect.iscoroutinefunction(view)
    assert await view() == 200


def test_a_view_keeps_its_name_and_signature(limiter: Limiter) -> None:
    view = ratelimit(limiter["web"])(greet)
    assert view.__name__ == "greet"
    assert inspect.signature(view) == inspect.signature(greet)


@pytest.mark.parametrize("option", ["limits", "key", "cost"])
async def test_async_functions_are_for_async_views(limiter: Limiter, option: str) -> None:
    async def later(name: str) -> Any:
        await asyncio.sleep(0)
        return {"limits": limiter["web", "ann"], "key": name, "cost": 2}[option]

    async def agreet(name: str) -> str:
        return greet(name)

    options: Any = {"limits": limiter["web"], option: later}
    assert await ratelimit(**options)(agreet)("ann") == "hello ann"
    handle = limiter["web"] if option == "cost" else limiter["web", "ann"]
    assert handle.peek(0).remaining == (0 if option == "cost" else 1)
    with pytest.raises(ConfigurationError, match=f"{option} must not be async"):
        ratelimit(**options)(greet)


def test_a_decorated_view_has_the_arguments_that_its_calls_have(limiter: Limiter) -> None:
    def view(session: Any, user: int, page: int) -> None: ...

    @wraps(view)
    def with_session(user: int, page: int) -> None:
        view("session", user, page)

    ratelimit(limiter["web"], key=lambda user: user)(with_session)(7, 8)
    assert limiter["web", 7].peek().remaining == 1
    assert limiter["web", 8].peek().remaining == 2


def test_methods(limiter: Limiter) -> None:
    class Shop:
        @ratelimit(limiter["web"], key=lambda request: request)
        def get(self, request: str) -> str:
            return f"{type(self).__name__} {request}"

    assert Shop().get("there") == "Shop there"
    bound = wraps(Shop.get)(partial(Shop().get))  # as Django's method_decorator has it
    assert ratelimit(limiter["web"], key=lambda request: request)(bound)("other") == "Shop other"


async def pages() -> AsyncIterator[bytes]:
    yield b""


async def later(answer: Answer) -> int:
    return answer.status


@pytest.mark.parametrize(
    ("view", "options", "error", "match"),
    [
        (
            greet,
            {"key": lambda user: user},
            KeyTemplateError,
            "view 'greet' has no argument 'user'",
        ),
        (greet, {"cost": lambda size: size}, KeyTemplateError, "'size'; allowed: name, request"),
        (greet, {"key": attrgetter("user")}, ConfigurationError, "does not say which arguments"),
        (Views, {}, ConfigurationError, "is no view; allowed"),
        ("view", {}, ConfigurationError, "'view' is no view"),
        (pages, {}, ConfigurationError, "is no view"),
        (greet, {"refused": 429}, ConfigurationError, "refused must be callable, not 429"),
        (greet, {"refused": later}, ConfigurationError, "refused must not be async"),
        (greet, {"outage": "local"}, ConfigurationError, "'local'"),
    ],
)
def test_what_is_wrong_is_said_at_once(view: Any, options: Any, error: Any, match: str) -> None:
    limiter = Limiter("redis://127.0.0.1:1/0", LIMITS)
    with pytest.raises(error, match=match):
        ratelimit(limiter["web"], **options)(view)


# Frameworks


def test_flask(limiter: Limiter) -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask("shop")

    def too_many(error: Throttled) -> Any:
        answer = answer_to(error)
        return flask.Response(answer.body, answer.status, answer.headers)

    @ratelimit(limiter["web"], key=lambda order: (by_address()(flask.request), order))
    def show(order: int) -> str:
        return f"order {order}"

    app.register_error_handler(Throttled, too_many)
    app.get("/<int:order>")(show)
    client = app.test_client()
    assert [client.get("/1").status_code for _ in range(3)] == [200, 200, 429]
    assert client.get("/2").text == "order 2"
    refused = client.get("/1")
    assert refused.headers["Retry-After"] == "6"
    assert refused.json["violated-policies"] == ["web"]


def test_django(limiter: Limiter) -> None:
    run_in_child(lambda: _check_django(limiter))  # the settings are those of a whole process


def _check_django(limiter: Limiter) -> None:
    django = pytest.importorskip("django")
    conf, http = pytest.importorskip("django.conf"), pytest.importorskip("django.http")
    client = pytest.importorskip("django.test")
    decorators = pytest.importorskip("django.utils.decorators")
    generic = pytest.importorskip("django.views")
    conf.settings.configure(ALLOWED_HOSTS=["*"])
    django.setup()

    def refused(answer: Answer) -> Any:
        return http.HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    limit = ratelimit(limiter["web"], key=by_user(), refused=refused)

    @limit
    def show(request: Any) -> Any:
        return http.HttpResponse(request.method)

    def get(_view: Any, request: Any) -> Any:
        return http.HttpResponse(request.method)

    shown = decorators.method_decorator(limit, name="dispatch")(
        type("Show", (generic.View,), {"get": get})
    )
    view, request = shown.as_view(), client.RequestFactory().get("/")
    assert [view(request).status_code for _ in range(3)] == [200, 200, 429]
    assert view(request).headers["Retry-After"] == "6"
    assert show(request).status_code == 429  # the same key


def test_async_views_of_django(limiter: Limiter) -> None:
    run_in_child(lambda: _check_async_django(limiter))


def _check_async_django(limiter: Limiter) -> None:
    """Django reads the user of a session at its first use, and refuses that in an event loop."""
    django, conf = pytest.importorskip("django"), pytest.importorskip("django.conf")
    client, http = pytest.importorskip("django.test"), pytest.importorskip("django.http")
    functional = pytest.importorskip("django.utils.functional")
    django_asyncio = pytest.importorskip("django.utils.asyncio")
    conf.settings.configure(ALLOWED_HOSTS=["*"])
    django.setup()
    names = {"by_user": "ada", "by_parts": "bob", "otherwise": "eve", "anonymous": None}
    keys = {
        "by_user": by_user(),
        "by_parts": by_parts(by_user(), by_address()),
        "otherwise": by_header("X-Api-Key", otherwise=by_user()),
        "anonymous": by_user(),
    }

    async def show(request: Any) -> Any:
        return http.HttpResponse(request.method)

    def ask(what: str) -> int:
        def read_user() -> Any:
            return SimpleNamespace(is_authenticated=names[what] is not None, pk=names[what])

        request = client.AsyncRequestFactory().get("/")
        request.user = functional.SimpleLazyObject(django_asyncio.async_unsafe(read_user))
        view = ratelimit(
            limiter["web"],
            key=keys[what],
            refused=lambda answer: http.HttpResponse(answer.body, status=answer.status),
        )(show)
        return int(asyncio.run(view(request)).status_code)

    for what in names:
        assert [ask(what) for _ in range(3)] == [200, 200, 429], what
    assert limiter["web", "ada"].peek().remaining == 0
    assert limiter["web", ("bob", "127.0.0.1")].peek().remaining == 0
    assert limiter["web", ("anonymous", "eve")].peek().remaining == 0
    assert limiter["web", ("anonymous", "127.0.0.1")].peek().remaining == 0


def test_fastapi(limiter: Limiter) -> None:
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("starlette.testclient")
    app = fastapi.FastAPI()

    async def too_many(_: Any, error: Throttled) -> Any:
        answer = answer_to(error)
        return fastapi.Response(answer.body, answer.status, dict(answer.headers))

    async def show(order: int, request: Any) -> Any:  # as views are
        return {"order": order, "path": request.url.path}

    show.__annotations__ = {"order": int, "request": fastapi.Request}
    app.add_exception_handler(Throttled, too_many)
    limit = ratelimit([limiter["web"], limiter["busy"]], key={"web": by_address()})
    app.get("/{order}")(limit(show))
    with testclient.TestClient(app, client=(HERE, 1)) as client:
        replies = [client.get("/7") for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[0].json() == {"order": 7, "path": "/7"}
        assert replies[2].headers["retry-after"] == "6"
