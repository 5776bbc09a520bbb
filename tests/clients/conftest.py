"""An API, and clients of one kind, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.api import Api, Client, Make


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


@pytest.fixture
def make(request: pytest.FixtureRequest, api: Api) -> Iterator[Make]:
    """Makes clients of one kind."""
    made: list[Client] = []

    def make(limit: Any, **options: Any) -> Client:
        made.append(request.param(api.url, limit, **options))
        if "limiter" in request.fixturenames:
            made[-1].limiter = request.getfixturevalue("limiter")
        return made[-1]

    yield make
    for client in made:
        client.close()
