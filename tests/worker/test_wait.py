"""A wait at the broker as a header of its message."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.worker.task_state import BrokerWait


@pytest.mark.parametrize("key", [None, "42"])
def test_it_survives_as_a_header(key: str | None) -> None:
    header = json.loads(json.dumps(BrokerWait(time.time() - 5, "mail", key)))
    found = BrokerWait.read(header)
    assert found is not None
    wait = found.end()
    assert (wait.ref, wait.position) == (LimitRef("mail", key), 0)
    assert wait.seconds == pytest.approx(5, abs=1)


def test_a_clock_that_is_behind_gives_no_negative_wait() -> None:
    assert BrokerWait(time.time() + 60, "mail", None).end().seconds == 0


@pytest.mark.parametrize(
    "header",
    [None, 5, [], [1.0, "mail"], ["x", "mail", None], [1, "no name", None], [1, "mail", 7]],
)
def test_a_malformed_header_is_ignored(header: Any) -> None:
    assert BrokerWait.read(header) is None
