"""The pages of an app, read without a web server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest

from celery_throttle.web import create_app
from tests.apps.operated import make_app


@dataclass(frozen=True)
class Site:
    """The pages of an app."""

    app: Any
    client: Any

    def read(self, path: str, status: int = 200) -> str:
        """Return the text of a page as people read it."""
        return text_of(self.html(path, status))

    def html(self, path: str, status: int = 200) -> str:
        reply = self.client.get(path)
        assert reply.status_code == status, reply.text
        text: str = reply.text
        return text

    def row(self, path: str, name: str) -> list[str]:
        """Return the cells of the row of a table that begins with a name."""
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", self.html(path), re.DOTALL)
        cells = ([text_of(cell) for cell in re.findall(_CELL, row, re.DOTALL)] for row in rows)
        return next(row for row in cells if row[0].split(" ")[0] == name)


_CELL = r"<t[hd].*?</t[hd]>"


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    app: Any = make_app(redis_url)
    app.throttle.register()  # as a worker does at its start
    yield Site(app, create_app(app.throttle, auth=lambda _: True).test_client())
    app.throttle.store.close()
    app.close()
