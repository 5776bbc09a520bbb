from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.algorithms.properties import Sides
from tests.algorithms.sides import Wire


@pytest.fixture
def sides(redis_url: str) -> Iterator[Sides]:
    wire = Wire(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        yield Sides(wire, client)
    wire.close()
