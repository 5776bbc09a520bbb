"""The pattern of Galaxy: a table with the next start of each user, and a retry until then."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from celery import Task

from examples.instead_of.shared import make_app, recorded

app = make_app("galaxy-before")

DATABASE = Path(os.environ.get("GALAXY_DATABASE", Path(tempfile.gettempdir()) / "galaxy.sqlite"))
SECONDS_BETWEEN_STARTS = 0.1

CREATE = "CREATE TABLE IF NOT EXISTS user_rate_limit (user TEXT PRIMARY KEY, start REAL)"
PLAN_START = """
    INSERT INTO user_rate_limit VALUES (:user, :now)
    ON CONFLICT (user) DO UPDATE SET start = max(:now, start + :between) RETURNING start
"""


def plan_start(user: str) -> float:
    """Return when the next task of a user starts, as many seconds after the one before."""
    connection = sqlite3.connect(DATABASE, timeout=60, isolation_level=None)
    try:
        connection.execute(CREATE)
        values = {"user": user, "now": time.time(), "between": SECONDS_BETWEEN_STARTS}
        return float(connection.execute(PLAN_START, values).fetchone()[0])
    finally:
        connection.close()


class UserTask(Task):  # pyright: ignore[reportMissingTypeArgument]  # Celery has none
    """The base class of tasks with a limit for each user."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002  # Celery's
        """Send a task of a user again, for its start."""
        user = kwargs.get("user")
        if self.request.retries > 0 or not user:
            return
        delay = plan_start(user) - time.time()
        if delay > 0:
            raise self.retry(countdown=delay)


@app.task(bind=True, name="work", base=UserTask)
def work(self: Any, user: str | None = None) -> None:
    """Do something for a user, or for the system."""
    with recorded(self.app.main, user):
        pass
