"""The pattern of PostHog: a set of running tasks, a table of limits, and sleep until one ends."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from examples.instead_of.posthog.table import QUERIES_AT_ONCE
from examples.instead_of.shared import client, make_app, recorded

app = make_app("posthog-before")

LIFETIME, PATIENCE, SHORTEST, LONGEST = 600, 30, 0.134, 1.714

BEGIN = """
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 0
  end
end
redis.call('ZADD', KEYS[1], ARGV[1] + ARGV[4], ARGV[2])
return 1
"""


class ConcurrencyLimitExceeded(Exception):  # noqa: N818  # as PostHog names it
    """As many queries of the team run as may, for too long."""


@contextmanager
def slot(team: int, task_id: str, most: int) -> Generator[None, None, None]:
    """Hold one of the team's slots."""
    running, began, pause = f"running:{team}", time.time(), SHORTEST
    while not client.eval(BEGIN, 1, running, int(time.time()), task_id, most, LIFETIME):
        if time.time() - began > PATIENCE:
            raise ConcurrencyLimitExceeded(team)
        time.sleep(pause)
        pause = min(LONGEST, pause * 1.5)
    try:
        yield
    finally:
        client.zrem(running, task_id)


@app.task(bind=True, name="work")
def work(self: Any, team: int) -> None:
    """Run a query of a team."""
    with (
        slot(team, self.request.id, QUERIES_AT_ONCE.get(team, 3)),
        recorded(self.app.main, team),
    ):
        time.sleep(0.1)
