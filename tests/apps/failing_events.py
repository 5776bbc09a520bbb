"""The monitored tasks in workers that cannot send some events."""

from __future__ import annotations

from typing import Any

from celery.events.dispatcher import EventDispatcher

from tests.apps.monitored import app


class FailingDispatcher(EventDispatcher):
    """Cannot send the events that the gate sends: those have a time, or are of another group."""

    def send(self, type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002  # as in Celery
        if type.startswith("throttle-") or (type == "task-received" and "timestamp" in fields):
            raise OSError("no such event")
        return super().send(type, *args, **fields)


app.events.dispatcher_cls = f"{__name__}:FailingDispatcher"
