from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.algorithms.properties import Sides
from tests.algorithms.wire import Wire


@pytest.fixture
def sides(redis_url: str) -> Iterator[Sides]:
    wire = Wire(redis_url)
    yield Sides(wire)
    wire.close()
