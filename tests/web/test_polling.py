"""A page that has not changed is not sent again."""

from __future__ import annotations

import time

import pytest

from tests.cli.conftest import fill
from tests.web.conftest import Site


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path", ["/", "/limits/mail", "/limits/mail/waiting", "/task?id=id3", "/fan-outs", "/workers"]
)
def test_waiting_tasks_and_countdowns_do_not_change_a_page(site: Site, path: str) -> None:
    fill(site.app, 10, tenants=2)
    site.app.throttle["mail"].pause(600)
    site.app.throttle["api"].pause(600)
    # A time that is rounded to seconds may end just then.
    assert any(_is_unchanged(site, path) for _ in range(5))


def _is_unchanged(site: Site, path: str) -> bool:
    tag = site.client.get(path).headers["ETag"]
    time.sleep(1.1)  # so that a countdown would show another second
    reply = site.client.get(path, headers={"If-None-Match": tag})
    if reply.status_code == 304:
        assert not reply.data
        assert "Content-Security-Policy" in reply.headers
    return bool(reply.status_code == 304)


def test_a_change_is_sent(site: Site) -> None:
    tag = site.client.get("/").headers["ETag"]
    site.app.throttle["mail"].pause(600)
    assert site.client.get("/", headers={"If-None-Match": tag}).status_code == 200


def test_static_files_are_sent_once(site: Site) -> None:
    tag = site.client.get("/static/htmx.min.js").headers["ETag"]
    reply = site.client.get("/static/htmx.min.js", headers={"If-None-Match": tag})
    assert reply.status_code == 304


def test_what_is_polled(site: Site) -> None:
    page = site.html("/?search=a&sort=name")
    assert 'hx-get="?search=a&amp;sort=name" hx-trigger="every 2s,' in page
    assert "hx-get" not in site.html("/limits/mail/report")
    assert "hx-get" not in site.html("/task")
