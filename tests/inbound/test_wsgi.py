"""What only the WSGI end does: slots until the body is closed, real servers, Flask, Django."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

import pytest

from celery_throttle.inbound import ThrottledWSGI, by_header
from celery_throttle.limiter.limiter import Limiter
from tests.inbound.sites import Asked, ask_wsgi

LIMITS = {"web": "10/m burst 2", "busy": "1 at once"}

pytestmark = pytest.mark.usefixtures("clock")


def start(environ: Any, start_response: Any) -> None:
    environ["wsgi.errors"].write("")
    start_response("200 OK", [("Content-Type", "text/plain")])


def ignore(*_: Any) -> Any:
    return bytes


def plain(environ: Any, start_response: Any) -> Iterable[bytes]:
    start(environ, start_response)
    return [b"hello"]


class Body:
    """Says when it is closed."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)

    def close(self) -> None:
        self.closed += 1


# Slots


def is_free(limiter: Limiter) -> bool:
    return limiter["busy"].peek().allowed


def test_a_slot_is_held_until_the_body_is_closed(limiter: Limiter) -> None:
    body = Body(b"one", b"two")

    def app(environ: Any, start_response: Any) -> Body:
        assert not is_free(limiter)
        start(environ, start_response)
        return body

    throttled = ThrottledWSGI(app, limiter["busy"])
    answer: Any = throttled(Asked().environ(), ignore)
    chunks = iter(answer)
    assert next(chunks) == b"one"
    assert not is_free(limiter)
    assert ask_wsgi(throttled).status == 429
    answer.close()  # as a server does whose client went away
    assert is_free(limiter)
    assert body.closed == 1
    answer.close()
    assert is_free(limiter)


def test_a_slot_is_given_back_when_all_is_sent(limiter: Limiter) -> None:
    throttled = ThrottledWSGI(lambda *_: Body(b"one"), limiter["busy"])
    assert list(throttled(Asked().environ(), ignore)) == [b"one"]
    assert is_free(limiter)  # though the server has not closed it


def test_a_slot_is_given_back_when_the_app_raises(limiter: Limiter) -> None:
    def app(*_: Any) -> Any:
        raise RuntimeError("app")

    with pytest.raises(RuntimeError, match="app"):
        ask_wsgi(ThrottledWSGI(app, limiter["busy"]))
    assert is_free(limiter)


def test_a_slot_is_given_back_when_the_body_raises(limiter: Limiter) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start(environ, start_response)
        yield b"one"
        raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"):
        ask_wsgi(ThrottledWSGI(app, limiter["busy"]))
    assert is_free(limiter)


def test_a_slot_is_given_back_when_closing_raises(limiter: Limiter) -> None:
    class Stuck(Body):
        def close(self) -> None:
            raise RuntimeError("close")

    answer: Any = ThrottledWSGI(lambda *_: Stuck(), limiter["busy"])(Asked().environ(), ignore)
    with pytest.raises(RuntimeError, match="close"):
        answer.close()
    assert is_free(limiter)


def test_a_body_without_a_slot_is_left_as_it_is(limiter: Limiter) -> None:
    body = Body(b"one")
    throttled = ThrottledWSGI(lambda *_: body, limiter["web"])
    assert throttled(Asked().environ(), ignore) is body


def test_never_more_at_once_than_there_are_slots(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"busy": "2 at once"})
    lock, inside, most = threading.Lock(), [0], [0]

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start(environ, start_response)
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        yield b"hello"
        with lock:
            inside[0] -= 1

    throttled = ThrottledWSGI(app, limiter["busy"], max_wait=20)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: ask_wsgi(throttled), range(60)))
    assert {reply.status for reply in replies} == {200}
    assert most == [2]
    assert limiter["busy"].peek(0).remaining == 2
    limiter.store.close()


# The protocol


def test_an_app_may_begin_again_with_an_error(limiter: Limiter) -> None:
    def app(_: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        start_response("500 Error", [("X-RateLimit-Limit", "1")], (ValueError, None, None))
        return []

    began: list[Any] = []

    def begin(*args: Any) -> Any:
        began.append(args)

    ThrottledWSGI(app, limiter["web"])(Asked().environ(), begin)
    assert [len(args) for args in began] == [2, 3]
    assert dict(began[1][1])["X-RateLimit-Limit"] == "1"
    assert dict(began[1][1])["X-RateLimit-Remaining"] == "1"


def test_a_refusal_of_head_has_no_body(limiter: Limiter) -> None:
    throttled = ThrottledWSGI(plain, limiter["web"])
    for _ in range(2):
        ask_wsgi(throttled)
    reply = ask_wsgi(throttled, Asked(method="HEAD"))
    assert (reply.status, reply.body) == (429, b"")
    assert int(reply.headers["content-length"]) > 0


def test_an_answer_of_ones_own(limiter: Limiter) -> None:
    def refused(environ: Any, start_response: Any) -> Iterable[bytes]:
        decision = environ["celery_throttle.decision"]
        start_response("429 Slow Down", [("Content-Type", "text/html"), ("Retry-After", "60")])
        return [f"<p>{decision.limited_by}".encode()]

    throttled = ThrottledWSGI(plain, limiter["web"], refused=refused)
    for _ in range(2):
        ask_wsgi(throttled)
    reply = ask_wsgi(throttled)
    assert (reply.status, reply.body) == (429, b"<p>web")
    assert reply.about("Retry-After", "X-RateLimit-Remaining", "Cache-Control") == [
        "60",
        "0",
        "no-store",
    ]
    assert "content-length" not in reply.headers


# Real servers and frameworks


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_behind_a_real_server(limiter: Limiter) -> None:
    limits = [limiter["web"], limiter["busy"]]
    app: Any = validator(ThrottledWSGI(validator(plain), limits, key=by_header("X-Api-Key")))
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        for _ in range(2):
            with urlopen(url, timeout=10) as answer:
                assert answer.read() == b"hello"
                assert answer.headers["X-RateLimit-Remaining"] == "0"  # of the one slot
        with pytest.raises(HTTPError) as refused:
            urlopen(url, timeout=10)
        assert refused.value.code == 429
        assert 1 <= int(refused.value.headers["Retry-After"]) <= 6
        refused.value.close()
        hostile = Request(url, headers={"X-Api-Key": "\xff" * 2000})  # our own server
        with urlopen(hostile, timeout=10) as answer:  # noqa: S310
            assert answer.status == 200
        server.shutdown()


def test_flask(limiter: Limiter) -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask("shop")
    app.route("/")(lambda: {"remaining": flask.request.environ["celery_throttle.decision"][2]})
    own = flask.Response("slow down", status=429)
    app.wsgi_app = ThrottledWSGI(app.wsgi_app, limiter["web"], refused=own)
    client = app.test_client()
    assert [client.get("/").json["remaining"] for _ in range(2)] == [1, 0]
    reply = client.get("/")
    assert (reply.status_code, reply.text) == (429, "slow down")
    assert reply.headers["Retry-After"] == "6"
