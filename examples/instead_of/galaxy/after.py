"""Instead of it: a limit for each user; `?` means no limit without one."""

from __future__ import annotations

from typing import Any

from celery_throttle import Throttle
from examples.instead_of.shared import URL, make_app, recorded

app = make_app("galaxy-after")
Throttle(app, {"user": "10/s"}, url=URL)


@app.task(bind=True, name="work", throttle="user:{user?}")
def work(self: Any, user: str | None = None) -> None:
    """Do something for a user, or for the system."""
    with recorded(self.app.main, user):
        pass
