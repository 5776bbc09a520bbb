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
    """The queues of one worker."""

    throttle: AppLimits
    #: Returns the routing of the present connection to the broker, None before the first.
    routing: Callable[[], Routing | None]

    def __post_init__(self) -> None:
        #: The queues that no worker consumes.
        self.unconsumed = UnconsumedQueues(self.throttle)
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

    def heartbeat_arguments(self, names: Sequence[str]) -> tuple[list[str], list[Argument]]:
        """Return the keys and arguments by which ``heartbeat.lua`` learns of these queues."""
        routing = self.routing()
        lines = [self._keys_of(name).lines for name in names]
        kinds = [str(int(routing is not None and routing.is_temporary(name))) for name in names]
        times: list[Argument] = [
            to_us(self.unconsumed.consumer_lease),
            to_us(tuning.UNCONSUMED_QUEUE_SECONDS),
        ]
        keys = self.throttle.keys
        names = [
            keys.temporary_queues,
            keys.consumed_queues,
            keys.changes,
            keys.worker_queues,
            keys.limits_with_keys,
        ]
        return [*names, *lines], [*times, "".join(kinds)]

    def settle_unconsumed(self) -> None:
        """Deal with queues that no worker consumes. Thread-safe."""
        try:
            self.unconsumed.settle()
        except StoreError as error:
            self._error_log.log(error)

    def _keys_of(self, name: str) -> QueueKeys:
        return self.throttle.keys.queue(self.throttle.qualify(name))


@dataclass(eq=False, repr=False)
class UnconsumedQueues:
    """Discards or reports the tasks of queues that no live worker consumes.

    If the broker deletes such a queue and its messages with the last consumer, the tasks in its
    lines are discarded likewise. Other queues keep their tasks, and are reported.

    Law at stake here: *never lost*. A worker counts as a consumer of its queues for minutes after
    the heartbeat that named them. That time may pass while the worker lives, if the server was lost
    or its clock has jumped. So a queue is given up only after this worker has seen for a while, by
    its own clock and without a gap, that no worker names the queue any more.
    """

    throttle: AppLimits

    def __post_init__(self) -> None:
        lease = self.throttle.settings.lease
        self._sure_after = tuning.UNCONSUMED_LEASES * lease
        self._since: dict[bytes, float] = {}
        self._deleted: set[bytes] = set()
        self._updated_at = 0.0
        #: Seconds for which a worker counts as a consumer after a heartbeat.
        self.consumer_lease = tuning.CONSUMER_LEASES * lease

    def update(self, deleted: Sequence[bytes], others: Sequence[bytes]) -> None:
        """Take over the queues that have had no consumer for long, by their keys ``lines``.

        The broker deletes the ``deleted`` ones with their last consumer, and keeps the others.
        """
        now = time.monotonic()
        known = self._since if now - self._updated_at < self._sure_after else {}
        self._updated_at = now
        self._since = {lines: known.get(lines, now) for lines in (*deleted, *others)}
        self._deleted = set(deleted)

    def settle(self) -> None:
        """Discard or report the tasks of the queues that are given up.

        Raises:
            StoreError: the server cannot be reached, or refuses a call.
        """
        for lines, since in self._since.items():
            if self._updated_at - since >= self._sure_after:
                queue = lines.decode().removeprefix(self.throttle.keys.queue("").lines)
                if lines in self._deleted:
                    self._discard(queue)
                else:
                    self._report(queue)

    def _discard(self, queue: str) -> None:
        keys = self.throttle.keys
        unless = ConsumedQueues(keys.temporary_queues, self.consumer_lease)
        count = self.throttle.run_plan(discard(keys, queue, unless))
        if count:
            logger.warning(
                "Queue %s was deleted with its last consumer: its %d waiting tasks were discarded, "
                "as the broker discards its messages",
                self._display_name(queue),
                count,
            )

    def _report(self, queue: str) -> None:
        keys = self.throttle.keys
        unless = ConsumedQueues(keys.consumed_queues, self.consumer_lease)
        plan = count_waiting(keys, queue, unless, tuning.UNCONSUMED_REPORT_SECONDS)
        count = self.throttle.run_plan(plan)
        if count > 0:
            logger.warning(
                "%d tasks wait in queue %s, which no live worker consumes: start one that does, or "
                "purge the queue",
                count,
                self._display_name(queue),
            )

    def _display_name(self, queue: str) -> str:
        """Return the name without the broker, if that is the app's."""
        return queue.removeprefix(self.throttle.qualify(""))
