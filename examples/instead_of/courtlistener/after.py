"""Instead of it: a limit with the key in its name."""

from __future__ import annotations

from typing import Any

from celery_throttle import Throttle
from examples.instead_of.shared import URL, make_app, recorded

app = make_app("courtlistener-after")
Throttle(app, {"court": "20/s"}, url=URL)


@app.task(bind=True, name="work", throttle="court:{court}")
def work(self: Any, court: str) -> None:
    """Look a court's documents up."""
    with recorded(self.app.main, court):
        pass
