"""Queues that hold tasks, and that no live worker consumes.

If the broker deletes such a queue with its last consumer, and with it the messages in it, the tasks
in its lines are discarded likewise. Others keep their tasks, and are reported.

Law at stake here: *never lost*. A worker is taken to consume its queues for minutes after it last
said so. That time may pass while it lives, if the server was out or its clock has jumped. So a
queue is given up only after this worker has seen for a while, by its own clock and without a gap,
that no worker says any more that it consumes the queue.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_throttle.operations.discard import ConsumedQueues, count_waiting, discard

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

logger = get_logger(__name__)

#: Leases for which a worker is taken to consume its queues after it last said so, and for which
#: another worker has to see that it does not say so any more.
_CONSUMES, _SURE = 10, 2

#: Seconds between two reports of a queue, by whichever worker.
_REPORT = 60.0


class Unconsumed:
    """As one worker sees it.

    Args:
        throttle: the app's limits.
    """

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._sure = _SURE * throttle.settings.lease
        self._since: dict[bytes, float] = {}
        self._deleted: set[bytes] = set()
        self._seen = 0.0

    def see(self, deleted: Sequence[bytes], others: Sequence[bytes]) -> None:
        """No worker has said for long that it consumes these queues, by their keys ``lines``.

        Args:
            deleted: those that the broker has deleted if nobody consumes them.
            others: those that it keeps.
        """
        now = time.monotonic()
        known = self._since if now - self._seen < self._sure else {}
        self._seen = now
        self._since = {lines: known.get(lines, now) for lines in (*deleted, *others)}
        self._deleted = set(deleted)

    def settle(self) -> None:
        """Deal with those of them that are given up.

        Raises:
            StoreError: the server cannot be asked.
        """
        for lines, since in self._since.items():
            if self._seen - since >= self._sure:
                queue = self._queue_of(lines)
                if lines in self._deleted:
                    self._discard(queue)
                else:
                    self._report(queue)

    def _queue_of(self, lines: bytes) -> str:
        """Its name with its broker."""
        return lines.decode().removeprefix(self._throttle.keys.queue("").lines)

    def _discard(self, queue: str) -> None:
        keys = self._throttle.keys
        count = self._throttle.run_plan(discard(keys, queue, self._among(keys.temporary_queues)))
        if count:
            logger.warning(
                "Queue %s is gone with its last consumer: its %d waiting tasks were discarded, as "
                "the broker discards its messages",
                *(self._short(queue), count),
            )

    def _report(self, queue: str) -> None:
        keys = self._throttle.keys
        among = self._among(keys.consumed_queues)
        count = self._throttle.run_plan(count_waiting(keys, queue, among, _REPORT))
        if count > 0:
            logger.warning(
                "%d tasks wait in queue %s, which no live worker consumes: start one that does, or "
                "purge the queue",
                *(count, self._short(queue)),
            )

    def _among(self, name: str) -> ConsumedQueues:
        return ConsumedQueues(name, lease_of(self._throttle))

    def _short(self, queue: str) -> str:
        """As the app names it, if it is of the same broker."""
        return queue.removeprefix(self._throttle.qualify(""))


def lease_of(throttle: Throttle) -> float:
    """Seconds for which a worker is taken to consume its queues after it last said so."""
    return _CONSUMES * throttle.settings.lease
