"""Tests that ask for a `pool` run once with each of Celery's pools, or with those they are for."""

from __future__ import annotations

import pytest

#: Pool -> its size in these tests.
SIZES = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 10, "eventlet": 10}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pool" in metafunc.fixturenames:
        for_some = metafunc.definition.get_closest_marker("pools")
        pools = for_some.args if for_some else tuple(SIZES)
        metafunc.parametrize("pool", pools, scope="module", indirect=True)


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> str:
    """The name of a pool."""
    name: str = request.param
    return name
