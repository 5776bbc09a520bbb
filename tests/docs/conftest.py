"""What the code of one page leaves in Celery does not reach the next page, or other tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import _state


@pytest.fixture(autouse=True)
def celery_state() -> Iterator[None]:
    """Celery's current app, and the tasks that each app gets when it is finalized, are restored."""
    app = _state.get_current_app()
    finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
    before = set(finalizers)
    yield
    app.set_current()
    finalizers.intersection_update(before)
