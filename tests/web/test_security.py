"""Who may read the pages, and what foreign sites and foreign text cannot do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from flask import Response

from celery_throttle import Limiter
from celery_throttle.web import create_app
from celery_throttle.web.security import ACTIONS, Auth, require_loopback, require_password
from tests.cli.conftest import fill
from tests.programs import run_python
from tests.web.conftest import Site

PATHS = (
    "/",
    "/limits/mail",
    "/limits/mail/keys",
    "/limits/mail/waiting",
    "/limits/mail/report",
    "/task",
    "/fan-outs",
    "/workers",
    "/history",
)

#: A server that nothing listens on, with a password.
LOST = "redis://user:hidden-word@127.0.0.1:1/0"


def client_of(auth: Auth, url: str = LOST) -> Any:
    return create_app(Limiter(url), auth=auth).test_client()


@pytest.mark.parametrize("path", [*PATHS, "/static/page.js", "/nothing", "/limits/none"])
def test_headers(site: Site, path: str) -> None:
    headers = site.client.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "private, no-cache"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize("path", PATHS)
def test_pages_have_no_scripts_or_styles_of_their_own(site: Site, path: str) -> None:
    page = site.html(path)
    assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|javascript:|js:", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_can_be_changed(site: Site, method: str, path: str) -> None:
    assert getattr(site.client, method)(path).status_code == 405


@pytest.mark.parametrize("path", [*PATHS, "/static/style.css", "/nothing"])
@pytest.mark.parametrize("refusal", [False, None, "", " "])
def test_auth_refuses(path: str, refusal: Any) -> None:
    reply = client_of(lambda _: refusal).get(path)
    assert (reply.status_code, "You may not see the limits" in reply.text) == (403, True)


async def _coroutine() -> None: ...


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("make_user", [object, Response, _coroutine, lambda: 1, lambda: ["ann"]])
def test_auth_must_return_a_name(make_user: Callable[[], object]) -> None:
    client = client_of(lambda _: make_user())
    for path in ("/", "/static/style.css"):
        reply = client.get(path)
        assert (reply.status_code, "auth returned an object of type" in reply.text) == (500, True)


def test_auth_sees_the_request() -> None:
    seen = []
    client_of(lambda request: seen.append(request.path) or "ann").get("/workers")  # type: ignore[func-returns-value]  # None
    assert seen == ["/workers"]


def test_a_password() -> None:
    client = client_of(require_password("pässword"))
    reply = client.get("/")
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"].startswith("Basic realm=")
    assert client.get("/", auth=("ann", "password")).status_code == 401
    assert client.get("/", headers={"Authorization": "Bearer pässword"}).status_code == 401
    for given in ("Basic !", "Basic /////w==", "Basic", "Basic YW5u"):
        assert client.get("/", headers={"Authorization": given}).status_code == 401
    assert client.get("/", auth=("ann", "pässword")).status_code == 503
    assert client.get("/", auth=("", "pässword")).status_code == 503


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:5556", True),
        ("127.0.0.1", True),
        ("[::1]:5556", True),
        ("LOCALHOST", True),
        ("127.0.0.9", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:5556", False),
        ("evil.example@localhost.", False),
        ("[", False),
        ("", False),
    ],
)
def test_other_names_of_this_machine_are_refused(host: str, *, allowed: bool) -> None:
    reply = client_of(require_loopback("127.0.0.9")).get("/", headers={"Host": host})
    assert reply.status_code == (503 if allowed else 400)


@pytest.mark.parametrize("host", ["a" * 5000, "." * 300])
def test_a_host_that_no_url_can_have(host: str) -> None:
    for auth in (require_loopback("127.0.0.1"), require_password("x"), lambda _: True):
        reply = client_of(auth).get("/", headers={"Host": host})
        assert reply.status_code == 400
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


def test_a_lost_server() -> None:
    client = client_of(lambda _: True)
    for path in PATHS:
        if path != "/task":
            reply = client.get(path)
            assert reply.status_code == 503, path
            assert "Check that the server runs" in reply.text
            assert "hidden-word" not in reply.text
            assert "127.0.0.1:1" in reply.text


def test_limits_in_memory_have_no_page() -> None:
    reply = client_of(lambda _: True, "memory://").get("/")
    assert (reply.status_code, "there is none" in reply.text) == (500, True)


def test_a_mistake_shows_no_details(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("hidden-word")

    monkeypatch.setattr("celery_throttle.web.app.guard", lambda *_: fail())
    page = site.html("/", 500)
    assert "hidden-word" not in page


def test_markup_is_inert(site: Site) -> None:
    bad = "<img src=x onerror=alert(1)>'\""
    app, throttle = site.app, site.app.throttle
    app.conf.throttle_routes = {}

    def send(tenant: str) -> None: ...

    app.task(send, name=bad, shared=False, lazy=False, throttle="mail:{tenant}")
    throttle.fan_out([app.tasks[bad].s(bad).set(task_id=bad)], bad)
    throttle["mail"].pause(600, reason=bad, by=bad)
    throttle["day"].define("90/d burst 90", reason=bad, by=bad)
    args = {"search": bad, "id": bad, "key": bad, "which": bad, "before": bad}
    for path in (*PATHS, "/limits/day", f"/limits/{bad}"):
        page = site.client.get(path).text + site.client.get(path, query_string=args).text
        assert "<img" not in page
        assert "'\"" not in page
    assert "&lt;img" in site.html("/limits/mail")
    assert "&lt;img" in site.client.get("/task", query_string=args).text
    assert "waits in a line" in site.client.get("/task", query_string=args).text
    assert "&lt;img" in site.html("/fan-outs")
    throttle["mail"].resume()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?page=-1", 200),
        ("/?page=99999999999999999999999", 200),
        ("/limits/mail/keys?page=99999999999999999999999", 200),
        ("/limits/mail/waiting?page=99999999999999999999999", 200),
        ("/limits/mail/report?hours=nan", 400),
        ("/limits/mail/report?hours=x", 200),
        ("/limits/mail?key=%00%ff", 200),
        ("/limits/mail%00", 400),
        ("/task?id=%00%ff%0a", 200),
        ("/history?before=x", 400),
        ("/history?before=5", 200),
        ("/fan-outs?search=%ff", 200),
    ],
)
def test_odd_arguments(site: Site, path: str, status: int) -> None:
    site.read(path, status)


#: Texts that forms and URLs can have, and that a page might not expect: the worst, one of each
#: kind, and others of these kinds.
GARBAGE = {
    None: ("\x00{queue}\u0663\udc80\r\n", "9" * 5000),
    "thorough": ("a\r\nSet-Cookie: x=1", "\ud800", "%", "a::b", "nan", "//evil.example", "'\"<b>"),
    "nightly": (
        *(
            "\udc80",
            "x" * 10_000,
            "\U0001f600",
            "\u202e",
            ":",
            "*",
            "[",
            "-1",
            "1e309",
            "inf",
            "..",
        ),
        *("\\", "\x1b[2J", "\u2028", "@fan-out", "5/s\x00"),
    ),
}

_ARGUMENTS = (
    *("key", "for", "limits", "weight", "queue", "reason", "name", "done", "preview", "page"),
    *("hours", "before", "which", "search", "sort", "id"),
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(
            text, marks=[getattr(pytest.mark, suite)] if suite else [], id=ascii(text[:20])
        )
        for suite, texts in GARBAGE.items()
        for text in texts
    ],
)
def test_garbage_is_no_error_of_the_server(site: Site, garbage: str) -> None:
    fill(site.app, 2)
    page = create_app(site.app.throttle, auth=lambda _: "ann", actions=ACTIONS)
    client = page.test_client()
    quoted = quote(garbage.encode("utf-8", "surrogatepass"), safe="")
    known = urlencode({"name": "nightly", "limits": "20/m", "preview": "1"})
    for rule in page.url_map.iter_rules():
        if rule.endpoint == "static":
            continue
        for name in ("mail", quoted):
            path = rule.rule.replace("<name>", name)
            for argument in _ARGUMENTS if name == "mail" else ("key",):
                query = f"{argument}={quoted}&{known}"
                form = {"data": query, "content_type": "application/x-www-form-urlencoded"}
                for reply in (
                    client.get(f"{path}?{query}"),
                    client.post(path, headers={"Sec-Fetch-Site": "same-origin"}, **form),
                ):
                    assert reply.status_code < 500, (path, argument, reply.text)
                    assert "Set-Cookie" not in reply.headers
                    location = reply.headers.get("Location", "/")
                    assert location.startswith("/")
                    assert not location.startswith("//")


def test_texts_that_are_not_utf8_are_escaped(site: Site) -> None:
    site.app.throttle["mail"].pause(600, reason="a \udc80 byte", by="ann\ud800\nbob")
    for path in ("/", "/limits/mail", "/history"):
        assert r"a \udc80 byte" in site.html(path)
        assert "ann\\ud800" in site.html(path)


def test_the_page_needs_no_celery() -> None:
    run_python(
        "-c",
        "import sys; import celery_throttle.web; from celery_throttle import Limiter; "
        "app = celery_throttle.web.create_app(Limiter('redis://x'), auth=bool); "
        "assert not {'celery', 'kombu', 'billiard'} & {*sys.modules}",
    )


def test_a_missing_extra_is_named() -> None:
    out = run_python(
        "-c",
        "import sys; sys.modules['flask'] = None\n"
        "try: import celery_throttle.web\n"
        "except Exception as error: print(error)",
    )
    assert 'pip install "celery-global-throttle[web]"' in out
