"""Instead of it: a limit."""

from __future__ import annotations

from typing import Any

from celery_throttle import Throttle
from examples.instead_of.shared import URL, make_app, recorded

app = make_app("pass_culture-after")
Throttle(app, {"contacts": "20/s"}, url=URL)


@app.task(bind=True, name="work", throttle="contacts")
def work(self: Any, contact: int) -> None:
    """Update a contact in an API."""
    with recorded(self.app.main, "all"):
        pass
