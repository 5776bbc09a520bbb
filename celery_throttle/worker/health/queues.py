"""The queues that this worker consumes, and those with waiting tasks that no live worker does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import to_us
from celery_throttle.operations.lines import ConsumedQueues, count_waiting, discard
from celery_throttle.store.keys import QueueKeys
from celery_throttle.store.script import Argument
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker import tuning
from celery_throttle.worker.error_log import ErrorLog

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class WorkerQueues:
    """The queues of one worker. It also deals with the queues that no live worker consumes.

    If the broker deletes such a queue and its messages with the last consumer, the tasks in its
    lines are discarded likewise. Other queues keep their tasks, and are reported.

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
        self._unconsumed: dict[bytes, float] = {}
        self._deleted: Sequence[bytes] = ()
        self._noted_at = 0.0
        self._error_log = ErrorLog(
            "The server refuses calls about queues that no worker consumes; their tasks wait."
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

    def note_unconsumed(self, deleted: Sequence[bytes], others: Sequence[bytes]) -> None:
        """Note the queues that have had no consumer for long, by their keys ``lines``.

        The broker deletes the ``deleted`` ones with their last consumer, and keeps the others.
        """
        now = time.monotonic()
        known = self._unconsumed if now - self._noted_at < self._sure_after else {}
        self._unconsumed = {lines: known.get(lines, now) for lines in (*deleted, *others)}
        self._deleted, self._noted_at = deleted, now

    def settle_unconsumed(self) -> None:
        """Discard or report the tasks of the queues that are given up. Thread-safe."""
        try:
            for lines, since in self._unconsumed.items():
                if self._noted_at - since >= self._sure_after:
                    queue = lines.decode().removeprefix(self.throttle.keys.queue("").lines)
                    settle = self._discard if lines in self._deleted else self._report
                    settle(queue, queue.removeprefix(self.throttle.qualify("")))
        except StoreError as error:
            self._error_log.log(error)

    def _discard(self, queue: str, shown_name: str) -> None:
        keys = self.throttle.keys
        unless = ConsumedQueues(keys.temporary_queues, self._consumer_lease)
        count = self.throttle.run_plan(discard(keys, queue, unless))
        if count:
            logger.warning(
                "Queue %s was deleted with its last consumer: its %d waiting tasks were discarded, "
                "as the broker discards its messages",
                shown_name,
                count,
            )

    def _report(self, queue: str, shown_name: str) -> None:
        keys = self.throttle.keys
        unless = ConsumedQueues(keys.consumed_queues, self._consumer_lease)
        plan = count_waiting(keys, queue, unless, tuning.UNCONSUMED_REPORT_SECONDS)
        count = self.throttle.run_plan(plan)
        if count > 0:
            logger.warning(
                "%d tasks wait in queue %s, which no live worker consumes: start one that does, or "
                "purge the queue",
                count,
                shown_name,
            )
