"""Instead of it: slots for each team; a function gives the limits of the teams in the table."""

from __future__ import annotations

import time
from typing import Any

from celery_throttle import LimitByKey, Throttle
from examples.instead_of.posthog.table import QUERIES_AT_ONCE
from examples.instead_of.shared import URL, make_app, recorded

app = make_app("posthog-after")


def limit_of(team: str) -> str | None:
    """Return the limit of a team in the table; None for the others."""
    slots = QUERIES_AT_ONCE.get(int(team))
    return f"{slots} at once" if slots else None


Throttle(app, {"team": LimitByKey("3 at once", limit_of)}, url=URL)


@app.task(bind=True, name="work", throttle="team:{team}")
def work(self: Any, team: int) -> None:
    """Run a query of a team."""
    with recorded(self.app.main, team):
        time.sleep(0.1)
