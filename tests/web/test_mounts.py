"""The page within other web apps, below a path of theirs. For Django's admin: tests/django."""

from __future__ import annotations

import re
from typing import Any

import pytest
from a2wsgi import WSGIMiddleware
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from celery_throttle.web import create_app
from tests.web.conftest import Site
from tests.web.test_actions import SAME_ORIGIN


def mount_in_flask(page: Flask) -> Any:
    outer = Flask("outer")
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/throttle": page})  # type: ignore[method-assign]
    return outer.test_client()


def mount_in_asgi(page: Any) -> Any:
    outer = FastAPI()
    inner: Any = WSGIMiddleware(page)  # its types of ASGI are its own
    outer.mount("/throttle", inner)
    return TestClient(outer, follow_redirects=False)


@pytest.mark.parametrize("mount", [mount_in_flask, mount_in_asgi])
def test_a_page_below_a_path(site: Site, mount: Any) -> None:
    client = mount(create_app(site.app.throttle, auth=lambda _: "ann", actions=["pause"]))
    page = client.get("/throttle/")
    assert page.status_code == 200
    links = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
    assert links
    assert all(link.startswith(("/throttle/", "#")) for link in links)
    assert client.get("/throttle/limits/mail").status_code == 200
    assert client.get("/throttle/static/htmx.min.js").status_code == 200
    assert client.get("/throttle/limits/none").status_code == 404
    tag = {"If-None-Match": page.headers["ETag"]}
    assert client.get("/throttle/", headers=tag).status_code == 304
    path, form = "/throttle/limits/mail/pause", {"for": "10m", "reason": "incident 12"}
    assert client.post(path, data=form).status_code == 403
    reply = client.post(path, data=form, headers=SAME_ORIGIN)
    assert reply.status_code == 303
    assert reply.headers["Location"].startswith("/throttle/limits/mail?done=")
    assert "incident 12" in client.get(reply.headers["Location"]).text
