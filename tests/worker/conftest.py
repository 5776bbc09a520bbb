"""What the tests of workers share.

Tests that ask for a `pool` run once with each of Celery's pools, or with those they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.workers import StartWorker, Worker

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


@pytest.fixture
def begin(
    request: pytest.FixtureRequest, redis_url: str, start_worker: StartWorker
) -> Callable[..., Worker]:
    """Starts a worker of the `APP` of the test's module, with some options."""
    return partial(start_worker, request.module.APP, redis_url)
