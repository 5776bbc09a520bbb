"""The queues of waiting tasks, found by their limits, on a real server."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from celery_throttle.operations.lines import waiting_queues
from tests.protocol import Protocol


@pytest.fixture
def lines(redis_url: str) -> Iterator[Protocol]:
    found = Protocol(redis_url, {"api": "1/h", "mail": "1/h"})
    for queue, limit in (("q", "api"), ("r", ("api", 7)), ("s", "mail")):
        for number in range(3):
            found.park(f"{queue}{number}", [limit], queue=queue, may_run=False)
    yield found
    found.close()


def find(lines: Protocol, *names: str, most_lists: int = sys.maxsize) -> tuple[set[str], bool]:
    queues, are_all = lines.limiter.run_plan(waiting_queues(lines.keys, names, most_lists))
    return {*queues}, are_all


def test_of_some_limits(lines: Protocol) -> None:
    assert find(lines, "api", "mail") == ({"q", "r", "s"}, True)
    assert find(lines, "api") == ({"q", "r"}, True)
    assert find(lines, "other") == (set(), True)


def test_that_more_lists_than_asked_for_are_not_searched(lines: Protocol) -> None:
    assert find(lines, "mail", "api", most_lists=0) == ({"s"}, False)
    assert find(lines, "mail", "api", most_lists=1) == ({"q", "r", "s"}, False)
    assert find(lines, "mail", "api", most_lists=3) == ({"q", "r", "s"}, True)
