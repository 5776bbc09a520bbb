"""Who may carry out actions, and what foreign sites and foreign text cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import Client

from celery_throttle import ConfigurationError, Limiter
from celery_throttle.web.app import MAX_REQUEST_BYTES, create_app
from celery_throttle.web.security import ACTIONS, AllowedActions, Auth
from tests.cli.conftest import fill
from tests.web.conftest import Site
from tests.web.test_actions import SAME_ORIGIN, confirm

FORGED: tuple[dict[str, str], ...] = (
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost:81"},
    {"Origin": "http://["},
    {"Origin": ""},
    {"Referer": "http://localhost/limits/mail"},
)


def page_of(
    site: Site, actions: AllowedActions = ACTIONS, auth: Auth = lambda _: "ann"
) -> tuple[Any, list[str]]:
    """Return a client, and the addresses of all pages that accept another method than GET."""
    app = create_app(site.app.throttle, auth=auth, actions=actions)
    rules = app.url_map.bind("localhost")
    paths = [
        rules.build(rule.endpoint, {"name": "mail"})
        for rule in app.url_map.iter_rules()
        if (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
    ]
    assert len(paths) == 11
    return app.test_client(), paths


@pytest.fixture(autouse=True)
def _nothing_is_changed(site: Site) -> Iterator[None]:
    fill(site.app, 2, name="mail")
    before = site.app.throttle.changes()
    yield
    assert site.app.throttle.changes() == before
    assert site.app.throttle["mail"].count_waiting().waiting == 2


def test_forged_requests_are_refused(site: Site) -> None:
    client, paths = page_of(site)
    for path in paths:
        for headers in FORGED:
            reply = client.post(path, data={"queue": "slow", "limits": "5/s"}, headers=headers)
            assert (reply.status_code, "Nothing was changed" in reply.text) == (403, True), path


@pytest.mark.parametrize("actions", [(), lambda _: (), lambda _: None])
def test_actions_that_are_not_allowed_are_refused(site: Site, actions: AllowedActions) -> None:
    client, paths = page_of(site, actions)
    for path in paths:
        reply = client.post(path, data={"queue": "slow", "limits": "5/s"}, headers=SAME_ORIGIN)
        assert (reply.status_code, "You may not" in reply.text) == (403, True), path
        assert client.get(path).status_code == 403


def test_each_action_needs_its_own_name(site: Site) -> None:
    for name in ACTIONS:
        client, paths = page_of(site, [one for one in ACTIONS if one != name])
        for path in paths:
            if path.partition("?")[0].rpartition("/")[2] == name:
                assert client.post(path, headers=SAME_ORIGIN).status_code == 403


def test_unauthorised_requests_are_refused(site: Site) -> None:
    client, paths = page_of(site, auth=lambda _: None)
    for path in paths:
        assert client.post(path, headers=SAME_ORIGIN).status_code == 403


def test_actions_of_each_user(site: Site) -> None:
    def auth(request: Any) -> str | None:
        name: str | None = request.headers.get("X-User")
        return name

    def actions(request: Any) -> list[str]:
        return ["define"] if request.headers["X-User"] == "ann" else []

    client, _ = page_of(site, actions, auth)
    for user, status in (("ann", 200), ("bob", 403), ("", 403)):
        reply = client.get("/limits/mail/define", headers={"X-User": user})
        assert reply.status_code == status
    assert "define" in client.get("/limits/mail", headers={"X-User": "ann"}).text
    assert "define" not in client.get("/limits/mail", headers={"X-User": "bob"}).text


def test_other_methods_are_refused(site: Site) -> None:
    client, paths = page_of(site)
    for path in paths:
        for method in ("put", "delete", "patch"):
            assert getattr(client, method)(path, headers=SAME_ORIGIN).status_code == 405


@pytest.mark.parametrize("actions", [["pause", "stop"], "stop", {"Pause"}])
def test_unknown_actions(actions: Any) -> None:
    with pytest.raises(ConfigurationError, match="is unknown; allowed: a list of pause, resume"):
        create_app(Limiter("redis://localhost"), auth=lambda _: True, actions=actions)


@pytest.mark.parametrize("actions", [5, ["stop"], (name for name in ACTIONS)])
def test_a_function_that_returns_other_values_allows_nothing(site: Site, actions: Any) -> None:
    client, paths = page_of(site, lambda _: actions)
    for path in paths:
        assert client.post(path, headers=SAME_ORIGIN).status_code == 500


def test_a_large_request_is_refused(site: Site) -> None:
    client, paths = page_of(site)
    for path in paths:
        data = {"reason": (BytesIO(bytes(MAX_REQUEST_BYTES)), "file")}
        assert client.post(path, data=data, headers=SAME_ORIGIN).status_code == 413


def test_pages_of_actions_have_the_policy(site: Site) -> None:
    client, paths = page_of(site)
    for path in paths:
        reply = client.get(path)
        assert reply.status_code == 200
        assert "unsafe" not in reply.headers["Content-Security-Policy"]
        assert "Set-Cookie" not in reply.headers
        assert "Access-Control-Allow-Origin" not in reply.headers


def test_a_lost_server(site: Site) -> None:
    url = "redis://user:hidden-word@127.0.0.1:1/0"
    client = create_app(Limiter(url), auth=lambda _: "ann", actions=ACTIONS).test_client()
    for path in ("/limits/mail/pause", "/limits/mail/reset"):
        assert client.get(f"{path}?preview=1").status_code == 503
        reply = client.post(path, headers=SAME_ORIGIN)
        assert (reply.status_code, "You can repeat the change" in reply.text) == (503, True)
        assert "hidden-word" not in reply.text
    del site


def test_a_proxy_that_changes_the_host(site: Site) -> None:
    page = create_app(site.app.throttle, auth=lambda _: "ann", actions=ACTIONS)
    headers = {
        "Host": "10.0.0.5:8000",
        "Origin": "http://shop.example",
        "X-Forwarded-Host": "shop.example",
        "X-Forwarded-Prefix": "/throttle",
    }
    assert page.test_client().post("/limits/mail/resume", headers=headers).status_code == 403
    client = Client(ProxyFix(page.wsgi_app, x_host=1, x_prefix=1))
    reply = client.post("/limits/mail/resume", headers=headers)  # it is not paused
    assert (reply.status_code, reply.location) == (303, "/throttle/limits/mail?done=none")
    forged = {**headers, "Origin": "http://evil.example"}
    assert client.post("/limits/mail/resume", headers=forged).status_code == 403


def test_same_origin_without_fetch_metadata_is_accepted(site: Site) -> None:
    client, _ = page_of(site)
    headers = {"Origin": "http://throttle.example:5556", "Host": "throttle.example:5556"}
    reply = client.post("/limits/mail/resume", headers=headers)  # it is not paused
    assert (reply.status_code, reply.location) == (303, "/limits/mail?done=none")


class TestMarkup:
    """Its changes are made on another limit, and stay in the log."""

    @pytest.fixture(autouse=True)
    def _nothing_is_changed(self) -> None:
        """Changes are made here."""

    def test_markup_is_inert(self, site: Site) -> None:
        bad = "<img src=x onerror=alert(1)>'\""
        app = create_app(site.app.throttle, auth=lambda _: bad, actions=ACTIONS)
        page = Site(site.app, app.test_client())
        fill(site.app, 2, name=bad)
        site.app.throttle["day"].define("90/d burst 90")
        fields = {"limits": bad, "weight": bad, "for": bad, "queue": bad, "key": bad, "name": bad}
        for path in ("/limits/mail", "/fan-outs"):
            for name in ACTIONS:
                for query in ({"reason": bad}, {"preview": "1", "done": bad, **fields}):
                    html = page.client.get(f"{path}/{name}", query_string=query).text
                    html += page.client.post(
                        f"{path}/{name}", data={**query, "reason": 501 * bad}, headers=SAME_ORIGIN
                    ).text
                    assert "<img" not in html
                    assert "'\"" not in html
        assert "onerror" in confirm(page, "/limits/mail/pause", bad)
        location = page.client.post(
            "/fan-outs/cancel", data={"name": bad, "reason": bad}, headers=SAME_ORIGIN
        ).location
        html = page.client.get(location).text + page.client.get("/history").text
        assert "&lt;img" in html
        assert "<img" not in html
        site.app.throttle["mail"].resume()

    def test_control_characters_reach_no_terminal(self, site: Site) -> None:
        page = create_app(site.app.throttle, auth=lambda _: "ann\r\nroot@host", actions=ACTIONS)
        data = {"reason": " a\n\x1b[2Jb\u202e "}
        page.test_client().post("/limits/mail/pause", data=data, headers=SAME_ORIGIN)
        author = site.app.throttle.changes(most=1)[0].author
        assert (author.by, author.reason) == ("ann  root@host (web)", "a  [2Jb")
        site.app.throttle["mail"].resume()

    def test_no_redirect_leads_elsewhere(self, site: Site) -> None:
        app = create_app(site.app.throttle, auth=lambda _: "ann", actions=ACTIONS)
        data = {"key": "//evil.example", "done": "//evil.example", "next": "//evil.example"}
        reply = app.test_client().post("/limits/mail/resume", data=data, headers=SAME_ORIGIN)
        assert reply.location.startswith("/limits/mail?key=")
