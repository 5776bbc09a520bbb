"""A task with limits on an app without ``Throttle(app)``: a worker does not run it unlimited."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_throttle import ConfigurationError, ThrottledTask


def test_it_fails_with_a_message_that_says_what_to_write(redis_url: str) -> None:
    runs: list[str] = []
    with Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False) as app:
        options: dict[str, Any] = {"base": ThrottledTask, "shared": False}

        @app.task(name="free", **options)
        def free() -> None:
            runs.append("free")

        @app.task(name="charge", throttle="limit-of-nobody", **options)
        def charge() -> None:
            runs.append("charge")

        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=100):
            # By name, as from a process that does not know the task.
            failed, done = app.send_task("charge"), app.send_task("free")
            with pytest.raises(ConfigurationError, match=r"'charge' has limits.*Throttle\(app\)"):
                failed.get(timeout=60)
            done.get(timeout=60)
        assert runs == ["free"]
