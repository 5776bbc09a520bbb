"""The events ``task-revoked`` of dropped tasks, without which monitors show them as received."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)

_GROUP = "task"


class RevokedEvents:
    """Sends events in the name of the workers that had received the tasks.

    Events are not worth a failure: if the broker cannot be reached, none is sent.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._dispatcher: Any = None

    def open(self) -> None:
        """Connect to the broker."""
        connection = self._connection = self._app.connection_for_write()
        try:
            connection.ensure_connection(max_retries=1)
            self._dispatcher = self._app.events.Dispatcher(
                connection, buffer_while_offline=False, buffer_group={_GROUP}
            )
        except Exception as error:  # noqa: BLE001  # whatever the broker's client raises
            self._give_up(error)

    def close(self) -> None:
        """Send the events that were gathered, and close the connection."""
        self.flush()
        with suppress(Exception):  # the tasks are dropped, however the connection ends
            self._connection.release()

    def send(self, task_id: str, worker: str) -> None:
        """Send the event of a task that a worker had received."""
        if self._dispatcher is None:
            return
        self._dispatcher.hostname = worker
        fields = {"terminated": False, "signum": None, "expired": False}
        try:
            self._dispatcher.send("task-revoked", uuid=task_id, **fields)
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(error)

    def flush(self) -> None:
        """Send the events that were gathered."""
        try:
            if self._dispatcher is not None:
                self._dispatcher.flush()
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._dispatcher = None
        logger.warning("Monitors may show dropped tasks as received: no broker (%r)", error)
