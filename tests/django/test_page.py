"""The page of limits in Django's admin, behind a WSGI server and an ASGI server."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from celery import Celery

from celery_throttle import Limiter, Throttle
from celery_throttle.operations.author import Author
from tests.django.conftest import PAGE, Login


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["root", "viewer", "changer"])
def test_the_admin_lists_the_page(login: Login, name: str) -> None:
    index = login(name).get("/shop/admin/")
    assert "Celery throttle" in index.text
    assert f'href="{PAGE}"' in index.text
    assert f"{PAGE}add/" not in index.text


def test_the_admin_lists_no_page_without_the_permission(login: Login) -> None:
    assert "Celery throttle" not in login("clerk").get("/shop/admin/").text


PATHS = ("", "limits/mail", "static/htmx.min.js", "nothing")


@pytest.mark.parametrize("name", ["", "customer"])
def test_the_page_needs_a_login_of_staff(login: Login, name: str) -> None:
    user = login(name)
    for path in PATHS:
        reply = user.get(PAGE + path)
        assert reply.status_code == 302
        assert reply.headers["Location"] == f"/shop/admin/login/?next={PAGE}{path}"


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("clerk", (403, 403, 403, 403)),
        ("viewer", (200, 200, 200, 404)),
        ("changer", (200, 200, 200, 404)),
        ("root", (200, 200, 200, 404)),
    ],
)
def test_the_page_needs_the_permission(login: Login, name: str, statuses: tuple[int, ...]) -> None:
    user = login(name)
    assert tuple(user.get(PAGE + path).status_code for path in PATHS) == statuses


def test_addresses_are_below_the_page(login: Login) -> None:
    viewer = login("viewer")
    for path in ("", "limits/mail", "limits/mail?key=d%C3%BCren%2F1%3F"):
        reply = viewer.get(PAGE + path)
        assert reply.status_code == 200
        links = re.findall(r'(?:href|src|action)="([^"]*)"', reply.text)
        assert links
        assert links.count("/shop/admin/") == 1
        assert all(link.startswith((PAGE, "#")) for link in links if link != "/shop/admin/")
        assert all(viewer.get(link).status_code == 200 for link in links if link[0] == "/")
    assert "düren/1?" in reply.text
    assert viewer.get(f"{PAGE}limits/none").status_code == 404
    assert viewer.get(f"{PAGE}limits/d%C3%BCren%2F1").status_code in (400, 404)
    assert viewer.get(PAGE.rstrip("/")).headers["Location"] == PAGE


def test_each_admin_site_has_its_page(login: Login) -> None:
    page = login("viewer").get("/shop/operations/celery_throttle/limit/").text
    assert '<a class="home" href="/shop/operations/">Shop &lt;operations&gt;</a>' in page
    assert "<title>Limits · Shop &lt;operations&gt;</title>" in page
    assert PAGE not in page


def test_replies_are_those_of_the_page(login: Login) -> None:
    viewer = login("viewer")
    page = viewer.get(PAGE)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "private, no-cache"
    poll = viewer.get(PAGE, headers={"If-None-Match": page.headers["ETag"]})
    assert (poll.status_code, poll.content) == (304, b"")
    assert viewer.head(PAGE).content == b""


PAUSE = f"{PAGE}limits/mail/pause"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("name", ["changer", "root"])
def test_users_who_may_change_limits_are_their_authors(
    login: Login, limiter: Limiter, name: str
) -> None:
    user, form = login(name), {"for": "10m", "reason": "incident 12"}
    assert "pause" in user.get(f"{PAGE}limits/mail").text
    assert user.get(PAUSE).status_code == 200
    reply = user.post(PAUSE, data=form, headers=SAME_ORIGIN)
    assert reply.status_code == 303, reply.text
    assert reply.headers["Location"].startswith(f"{PAGE}limits/mail?")
    (change,) = limiter.changes(most=1)
    assert change.author is not None
    assert (change.author.by, change.author.reason) == (f"{name} (web)", "incident 12")
    page = user.get(reply.headers["Location"]).text
    assert f"{name} (web)" in page
    # Browsers send no Sec-Fetch-Site over plain HTTP.
    origin = {"Origin": str(user.base_url).rstrip("/")}
    assert user.post(f"{PAGE}limits/mail/resume", headers=origin).status_code == 303
    assert not limiter["mail"].status().pauses


def test_no_field_of_a_form_is_lost(login: Login, limiter: Limiter) -> None:
    """Not even if a proxy sends it in chunks, or a middleware has read the body."""
    root, text = login("root"), "é" * 400
    forms: list[dict[str, Any]] = [
        {"data": {"for": "10m", "reason": text}},
        {"files": {"for": (None, "10m"), "reason": (None, text)}},
        {
            "content": iter([urlencode({"for": "10m", "reason": text}).encode()]),
            "headers": {"Content-Type": "application/x-www-form-urlencoded"},
        },
    ]
    for form in forms:
        headers = {**form.pop("headers", {}), **SAME_ORIGIN}
        assert root.post(PAUSE, headers=headers, **form).status_code == 303
        (pause,) = limiter["mail"].status().pauses
        assert pause.until is not None
        assert pause.author == Author("root (web)", text)
        limiter["mail"].resume()


def test_large_posts_are_refused(login: Login, limiter: Limiter) -> None:
    form = {"reason": "x" * 3_000_000}
    assert login("root").post(PAUSE, data=form, headers=SAME_ORIGIN).status_code == 400
    assert not limiter["mail"].status().pauses


@pytest.mark.parametrize(
    ("name", "path", "headers"),
    [
        ("viewer", PAUSE, SAME_ORIGIN),
        ("clerk", PAUSE, SAME_ORIGIN),
        ("root", PAUSE, {"Sec-Fetch-Site": "cross-site"}),
        ("root", PAUSE, {"Origin": "http://evil.example"}),
        ("root", PAUSE, {}),
        ("root", f"{PAGE}limits/mail/reset", SAME_ORIGIN),
    ],
    ids=["viewer", "clerk", "cross-site", "foreign origin", "no origin", "not listed"],
)
def test_other_changes_are_refused(
    login: Login, limiter: Limiter, name: str, path: str, headers: dict[str, str]
) -> None:
    before = limiter.changes()
    assert login(name).post(path, headers=headers).status_code == 403
    assert limiter.changes() == before


@pytest.mark.parametrize("name", ["", "customer"])
def test_changes_need_a_login(login: Login, name: str) -> None:
    reply = login(name).post(PAUSE, headers=SAME_ORIGIN)
    assert (reply.status_code, "/admin/login/" in reply.headers["Location"]) == (302, True)


def test_foreign_hosts_are_refused(login: Login) -> None:
    assert login("viewer").get(PAGE, headers={"Host": "evil.example"}).status_code == 400


def test_the_page_is_current(login: Login, limiter: Limiter) -> None:
    viewer = login("viewer")
    limiter["mail"].pause(600, reason="incident 12")
    assert "incident 12" in viewer.get(f"{PAGE}limits/mail").text
    limiter["mail"].resume()
    assert "paused until" not in viewer.get(f"{PAGE}limits/mail").text


def test_arguments_are_shown_if_enabled(login: Login, redis_url: str) -> None:
    app: Any = Celery("shop", broker="memory://", set_as_current=False)
    throttle = Throttle(app, {"mail": "2/s"}, url=redis_url)

    @app.task(name="send", throttle="mail", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def send(number: int) -> None: ...

    throttle.fan_out([send.s(4711).set(task_id="one")], "one")
    assert "(4711,)" in login("viewer").get(f"{PAGE}task?id=one").text
    throttle.store.close()
    app.close()
