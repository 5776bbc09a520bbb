"""The queues that this worker consumes, and those that the broker deletes with their consumers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import to_us
from celery_throttle.operations.lines import discard
from celery_throttle.store.keys import QueueKeys
from celery_throttle.store.script import Argument
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker import tuning
from celery_throttle.worker.error_log import ErrorLog

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class WorkerQueues:
    """The queues of one worker.

    It also discards the tasks in lines of queues that no live worker consumes, if the broker
    deletes these queues and their messages with the last consumer. Other queues keep their tasks.

    Law at stake here: *never lost*. A worker counts as a consumer of its queues for minutes after
    the heartbeat that named them. That time may pass while the worker lives, if the server was lost
    or its clock has jumped. So a queue is given up only after this worker has seen for a while, by
    its own clock and without a gap, that no worker names the queue any more.
    """

    throttle: AppLimits
    #: Returns the routing of the present connection to the broker, None before the first.
    routing: Callable[[], Routing | None]

    def __post_init__(self) -> None:
        lease = self.throttle.settings.lease
        #: Seconds for which a worker counts as a consumer after a heartbeat.
        self._consumer_lease = tuning.CONSUMER_LEASES * lease
        self._sure_after = tuning.UNCONSUMED_LEASES * lease
        #: Since when (monotonic) no worker has consumed a queue, by its key ``lines``.
        self._deleted: dict[bytes, float] = {}
        self._noted_at = 0.0
        self._error_log = ErrorLog(
            "The server refuses to discard the tasks of deleted queues; they wait."
        )

    def names(self) -> Sequence[str]:
        """Return the names of the queues."""
        routing = self.routing()
        return () if routing is None else routing.names()

    def keys(self) -> list[QueueKeys]:
        """Return the keys of the queues."""
        return [self._keys_of(name) for name in self.names()]

    def names_by_lines(self) -> dict[str, str]:
        """Return the names of the queues by their keys ``lines``."""
        return {self._keys_of(name).lines: name for name in self.names()}

    def _keys_of(self, name: str) -> QueueKeys:
        return self.throttle.keys.queue(self.throttle.qualify(name))

    def heartbeat_arguments(self) -> tuple[list[str], list[Argument]]:
        """Return the keys and arguments by which ``heartbeat.lua`` learns of these queues."""
        routing, names, keys = self.routing(), self.names(), self.throttle.keys
        kinds = [str(int(routing is not None and routing.is_temporary(name))) for name in names]
        sets = [keys.temporary_queues, keys.consumed_queues, keys.changes, keys.worker_queues]
        lines = [self._keys_of(name).lines for name in names]
        kept = to_us(tuning.UNCONSUMED_QUEUE_SECONDS)
        return (
            [*sets, keys.limits_with_keys, *lines],
            [to_us(self._consumer_lease), kept, "".join(kinds)],
        )

    def note_deleted(self, queues: Sequence[bytes]) -> None:
        """Note the queues without a consumer that the broker has deleted, by their keys ``lines``.

        No worker has reported them for long.
        """
        now = time.monotonic()
        known = self._deleted if now - self._noted_at < self._sure_after else {}
        self._deleted = {lines: known.get(lines, now) for lines in queues}
        self._noted_at = now

    def discard_deleted(self) -> None:
        """Discard the tasks of the queues that are certainly deleted. Thread-safe."""
        keys, own_broker = self.throttle.keys, self.throttle.qualify("")
        try:
            for lines, since in self._deleted.items():
                if self._noted_at - since < self._sure_after:
                    continue
                queue = lines.decode().removeprefix(keys.queue("").lines)
                plan = discard(keys, queue, unless_consumed_for=self._consumer_lease)
                discarded = self.throttle.run_plan(plan)
                if discarded:
                    logger.warning(
                        "Queue %s was deleted with its last consumer: its %d waiting tasks were "
                        "discarded, as the broker discards its messages",
                        queue.removeprefix(own_broker),
                        discarded,
                    )
        except StoreError as error:
            self._error_log.log(error)
