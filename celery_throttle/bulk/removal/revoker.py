"""Drop: withdrawn tasks end with the state REVOKED, as if a worker had got them after a revoke.

The result backend gets the state, the chord of a task learns of it, a fan-out counts it, and
monitors get the event ``task-revoked``. The signal ``task_revoked`` is a worker's, and is not sent.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery.worker.request import Request
from celery.worker.strategy import proto1_to_proto2  # type: ignore[attr-defined]  # not in the stubs
from kombu.serialization import prepare_accept_content

from celery_throttle.bulk.removal.withdrawal import Disposal, WithdrawnTask
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.operations.fan_outs import REVOKED, outcomes_call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER, FAN_OUT_SHARD_HEADER

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)


class Revoker(Disposal):
    """Ends the tasks of a shard as revoked; ``reason``: the message of the error in the result."""

    purpose = "drop"

    def __init__(
        self, throttle: AppLimits, parts_by_name: Mapping[str, AppLimits], reason: str
    ) -> None:
        self._throttle = throttle
        self._app = throttle.app
        self._parts_by_name = parts_by_name
        self._reason = reason
        self._accept = prepare_accept_content(self._app.conf.accept_content)
        #: Ids of revoked tasks, by the shard and the name of their fan-out.
        self._of_fan_outs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        #: Ids of revoked tasks, by the name of the worker that has received them. None while the
        #: broker cannot be reached: events are not worth a failure.
        self._by_worker: defaultdict[str, list[str]] | None = defaultdict(list)

    def dispose(self, task: WithdrawnTask, queue: str) -> None:  # noqa: ARG002  # as in the base
        """Store the state of a task."""
        try:
            message = packing.unpack(task.packed, self._accept)
            request = self._request(message)
        except Exception:  # noqa: BLE001  # no worker could run it either; its id is all that is needed
            self._app.backend.mark_as_revoked(task.id, self._reason)
            return
        context = request._context  # noqa: SLF001  # as Celery's request passes it on
        request.task.backend.mark_as_revoked(
            request.id, self._reason, request=context, store_result=request.store_errors
        )
        if message.received_by and request.task.send_events and self._by_worker is not None:
            self._by_worker[message.received_by].append(request.id)
        fan_out = request.request_dict.get(FAN_OUT_HEADER)
        if fan_out is not None:
            shard = str(request.request_dict.get(FAN_OUT_SHARD_HEADER, ""))
            self._of_fan_outs[shard, str(fan_out)].append(task.id)

    def complete(self) -> None:
        """Send the events, and record the tasks of fan-outs as revoked."""
        if self._by_worker:
            self._send_events(self._by_worker)
        for shard, name in list(self._of_fan_outs):
            part = self._parts_by_name.get(shard, self._throttle)
            outcomes = [(task_id, REVOKED) for task_id in self._of_fan_outs[shard, name]]
            call = outcomes_call(part.keys.fan_out(name), outcomes)
            retry_outage(partial(part.store.run, call), self.purpose)
            del self._of_fan_outs[shard, name]

    def _send_events(self, by_worker: defaultdict[str, list[str]]) -> None:
        """Send ``task-revoked`` in the name of the workers that had received the tasks."""
        fields = {"terminated": False, "signum": None, "expired": False}
        app: Any = self._app
        try:
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1)
                dispatcher = app.events.Dispatcher(
                    connection, buffer_while_offline=False, buffer_group={"task"}
                )
                for dispatcher.hostname, task_ids in by_worker.items():
                    for task_id in task_ids:
                        dispatcher.send("task-revoked", uuid=task_id, **fields)
                dispatcher.flush()
            by_worker.clear()
        except Exception as error:  # noqa: BLE001  # whatever the broker's client raises
            self._by_worker = None
            logger.warning("Monitors may show dropped tasks as received: no broker (%r)", error)

    def _request(self, message: packing.ClaimedMessage) -> Any:
        """Return the request that a worker would make of a message."""
        options: dict[str, Any] = {}
        if "task" not in message.headers:
            body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
            options = {"body": body, "headers": headers, "decoded": decoded, "utc": utc}
        name = packing.task_fields(message)["task"]
        task = self._app.tasks.get(name) or self._app.Task()
        return Request(message, app=self._app, task=task, **options)
