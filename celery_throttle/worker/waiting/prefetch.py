"""Prefetch slots of messages that wait in this worker: other messages get them meanwhile.

Where the broker counts prefetched messages per channel, the prefetch count is raised by the number
of waiting messages. RabbitMQ 4, and RabbitMQ 3 with quorum queues, count per consumer, and a new
count applies to new consumers only. There, a queue gets a new consumer when a message of the active
one waits; waiting messages keep the slots of the old consumer, which is cancelled.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from celery.worker.consumer.tasks import Tasks

from celery_throttle.tasks.messages.packing import is_claimed
from celery_throttle.worker import tuning


class Prefetch:
    """The prefetch slots of one connection to the broker. Thread-safe.

    This broker has one count for all queues, which changes in the next round of Celery's loop.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def free(self, _message: Any) -> None:
        """Free the slot of a message that waits."""
        self._consumer.qos.increment_eventually()

    def take(self, _message: Any) -> None:
        """Take the slot again for a message that waits no more."""
        self._consumer.qos.decrement_eventually()


class _ConsumerPrefetch(Prefetch):
    """Prefetch slots of a broker with a count per consumer, which stays as it is.

    A queue gets a new consumer when a message of the active one waits, but only while fewer
    messages than the count allows are in this worker and do not wait. Messages of the two consumers
    before may then be on their way, so for a moment a worker has up to three times the count.
    """

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        #: The messages that do not wait; some are acknowledged already.
        self._messages: set[Any] = set()
        #: The queues of which a message of the active consumer waits, which keeps its slot.
        self._blocked: set[str] = set()
        #: The queues of consumers that were cancelled recently, by the tags of these.
        self._cancelled: dict[str, str] = {}
        self._count = 0  #: the count that the broker knows
        self._lock = threading.RLock()
        # Celery's loop calls it in each round in which `qos.prev` is not `qos.value`.
        self._update_count = consumer.qos.update
        consumer.qos.update = self._update
        consumer.strategies.on_message = self._receive

    @property
    def _active_tags(self) -> dict[str, str]:
        tags: dict[str, str] = self._consumer.task_consumer._active_tags  # noqa: SLF001  # kombu has no other way
        return tags

    def _receive(self, message: Any) -> None:
        """Note a message that came from the broker; a message out of a line has no slot."""
        if is_claimed(message):
            return
        tag = message.delivery_info["consumer_tag"]
        with self._lock:
            active = (queue for queue, own in self._active_tags.items() if own == tag)
            queue = self._cancelled.get(tag) or next(active, None)
            if queue is not None:
                message.throttle_queue = queue
                self._messages.add(message)
                if len(self._messages) > 2 * self._consumer.qos.value:
                    self._has_room()

    def _has_room(self) -> bool:
        """Return whether fewer messages than the count allows do not wait."""
        self._messages = {message for message in self._messages if not message.acknowledged}
        return len(self._messages) < int(self._consumer.qos.value)

    def free(self, message: Any) -> None:
        if is_claimed(message):
            return
        with self._lock:
            self._messages.discard(message)
            queue = getattr(message, "throttle_queue", "")
            if self._active_tags.get(queue) == message.delivery_info["consumer_tag"]:
                self._blocked.add(queue)
            self._replace_consumers()

    def take(self, message: Any) -> None:
        if not is_claimed(message):
            with self._lock:
                self._messages.add(message)

    def _update(self) -> int:
        """Let the broker know a new count, and try again to replace consumers."""
        qos = self._consumer.qos
        with self._lock:
            if self._count != qos.value:
                self._count = qos.value
                self._update_count()
            qos.prev = qos.value
            self._replace_consumers()
        return int(qos.value)

    def _replace_consumers(self) -> None:
        """Replace the consumers of blocked queues, or have Celery's loop call :meth:`_update`."""
        for queue in list(self._blocked):
            if queue not in self._active_tags:  # it is consumed no more
                self._blocked.discard(queue)
            elif self._has_room():
                self._blocked.discard(queue)
                # Celery finds out by itself that the connection is lost.
                with suppress(*self._consumer.connection_errors, *self._consumer.channel_errors):
                    self._replace_consumer(queue)
        if self._blocked:
            self._consumer.qos.prev = None

    def _replace_consumer(self, name: str) -> None:
        """Consume a queue anew, without waiting for the broker's reply.

        The active consumer is cancelled last: a queue may be deleted with its last one.
        """
        consumer = self._consumer.task_consumer
        old = self._active_tags.pop(name)
        queue = next(queue for queue in consumer.queues if queue.name == name)
        consumer._basic_consume(queue, no_ack=consumer.no_ack)  # noqa: SLF001  # as above
        self._cancelled[old] = name
        consumer.channel.basic_cancel(old, nowait=True)
        former = [tag for tag, each in self._cancelled.items() if each == name]
        if len(former) >= tuning.PREFETCH_CONSUMER_COUNT:
            # A message of the consumer before has come. The broker executes commands in order, so
            # the first consumer had ended before, and no message of it can come any more.
            del self._cancelled[former[0]]
            consumer.channel.callbacks.pop(former[0], None)


def make_prefetch(consumer: Any) -> Prefetch:
    """Make the prefetch slots for Celery's consumer, by how its broker counts."""
    per_channel: bool | None = getattr(consumer, "qos_global", None)
    if per_channel is None:  # Celery stores it since 5.6
        per_channel = Tasks.qos_global(None, consumer)  # type: ignore[arg-type]  # it uses no `self`
    is_amqp = consumer.connection.transport.driver_type == "amqp"
    return _ConsumerPrefetch(consumer) if is_amqp and not per_channel else Prefetch(consumer)
