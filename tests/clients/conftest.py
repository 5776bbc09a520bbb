"""What the tests of several clients share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_throttle import Limiter


@pytest.fixture
def limiter(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Limiter]:
    """A limiter with the limits of the test module, ``LIMITS``."""
    limiter = Limiter(redis_url, request.module.LIMITS)
    yield limiter
    limiter.store.close()
