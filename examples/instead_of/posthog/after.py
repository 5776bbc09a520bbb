"""Instead of it: slots for each team; teams in the table have limits of their own."""

from __future__ import annotations

import time
from typing import Any

from celery.signals import worker_ready

from celery_throttle import Throttle
from examples.instead_of.posthog.table import QUERIES_AT_ONCE
from examples.instead_of.shared import URL, make_app, recorded

app = make_app("posthog-after")
throttle = Throttle(app, {"team": "3 at once"}, url=URL)


@worker_ready.connect(weak=False)
def apply_table(**_: Any) -> None:
    """Define the limits of the teams in the table."""
    for team, slots in QUERIES_AT_ONCE.items():
        throttle["team", team].define(f"{slots} at once")


@app.task(bind=True, name="work", throttle="team:{team}")
def work(self: Any, team: int) -> None:
    """Run a query of a team."""
    with recorded(self.app.main, team):
        time.sleep(0.1)
