"""Prefetch slots of messages that wait in this worker: other messages get them meanwhile.

Where the broker counts prefetched messages per channel, the prefetch count is raised by the number
of waiting messages. RabbitMQ 4, and RabbitMQ 3 with quorum queues, count per consumer, and a new
count applies to new consumers only. There, a queue gets a new consumer when a message of the active
one waits; waiting messages keep the slots of the old consumer, which is cancelled.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery.worker.consumer.tasks import Tasks

from celery_throttle.tasks.messages.packing import is_claimed
from celery_throttle.worker import tuning


class Prefetch(ABC):
    """The prefetch slots of one connection to the broker. Thread-safe."""

    @abstractmethod
    def free(self, message: Any) -> None:
        """Free the slot of a message that waits."""

    @abstractmethod
    def take(self, message: Any) -> None:
        """Take the slot again for a message that waits no more."""


def make_prefetch(consumer: Any) -> Prefetch:
    """Make the prefetch slots for Celery's consumer, by how its broker counts."""
    if consumer.connection.transport.driver_type == "amqp" and not _counts_per_channel(consumer):
        return ConsumerPrefetch(consumer)
    return ChannelPrefetch(consumer)


def _counts_per_channel(consumer: Any) -> bool:
    stored: bool | None = getattr(consumer, "qos_global", None)
    # Celery stores it since 5.6.
    return Tasks.qos_global(None, consumer) if stored is None else stored  # type: ignore[arg-type]  # it uses no `self`


class ChannelPrefetch(Prefetch):
    """Prefetch slots of a broker with one count for all queues, which can be changed any time."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def free(self, _message: Any) -> None:
        """See :class:`Prefetch`; the count is raised in the next round of Celery's loop."""
        self._consumer.qos.increment_eventually()

    def take(self, _message: Any) -> None:
        """See :class:`Prefetch`; the count is lowered in the next round of Celery's loop."""
        self._consumer.qos.decrement_eventually()


@dataclass
class _Window:
    """The prefetched messages of one queue."""

    queue: str
    #: The tags of its consumers: two that are cancelled, then the active one.
    tags: list[str] = field(default_factory=list)
    #: The messages that do not wait; some are acknowledged already.
    messages: set[Any] = field(default_factory=set)
    #: Whether a message of the active consumer waits, which keeps its slot.
    needs_consumer: bool = False

    def count(self) -> int:
        """Return the number of prefetched messages, without those that wait."""
        self.messages = {message for message in self.messages if not message.acknowledged}
        return len(self.messages)


class ConsumerPrefetch(Prefetch):
    """Prefetch slots of a broker with a count per consumer, which stays as it is.

    A queue gets a new consumer when a message of the active one waits, but only while fewer
    messages than the count allows are in this worker and do not wait. Messages of the two consumers
    before may then be on their way, so for a moment a worker has up to three times the count.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._windows: dict[str, _Window] = {}
        self._by_tag: dict[str, _Window] = {}
        self._lock = threading.RLock()
        # Celery's loop calls it in each round in which `qos.prev` is not `qos.value`.
        self._update_count = consumer.qos.update
        consumer.qos.update = self._update
        consumer.strategies.on_message = self._receive

    def _receive(self, message: Any) -> None:
        """Note a message that came from the broker; a message out of a line has no slot."""
        if is_claimed(message):
            return
        with self._lock:
            window = self._window_of(message.delivery_info["consumer_tag"])
            if window is not None:
                message.throttle_queue = window.queue
                window.messages.add(message)
                if len(window.messages) > 2 * self._consumer.qos.value:
                    window.count()

    def _window_of(self, tag: str) -> _Window | None:
        """Return the window of a consumer that is active, or was cancelled recently."""
        if tag not in self._by_tag:
            for queue, active in self._active_tags.items():
                if active not in self._by_tag:
                    self._by_tag[active] = self._windows[queue] = _Window(queue, [active])
        return self._by_tag.get(tag)

    @property
    def _active_tags(self) -> dict[str, str]:
        tags: dict[str, str] = self._consumer.task_consumer._active_tags  # noqa: SLF001  # kombu has no other way
        return tags

    def _window_with(self, message: Any) -> _Window | None:
        """Return the window that a message came in; None for a message out of a line."""
        queue = None if is_claimed(message) else getattr(message, "throttle_queue", None)
        return None if queue is None else self._windows.get(queue)

    def free(self, message: Any) -> None:
        """See :class:`Prefetch`; a message of the active consumer makes its queue get a new one."""
        window = self._window_with(message)
        if window is not None:
            with self._lock:
                window.messages.discard(message)
                if message.delivery_info["consumer_tag"] == window.tags[-1]:
                    window.needs_consumer = True
                if window.needs_consumer and not self._try_replace(window):
                    self._consumer.qos.prev = None

    def take(self, message: Any) -> None:
        """See :class:`Prefetch`; the message counts like any other."""
        window = self._window_with(message)
        if window is not None:
            with self._lock:
                window.messages.add(message)

    def _update(self) -> int:
        """Try again to replace consumers; otherwise pass a new count on to Celery's method."""
        qos = self._consumer.qos
        with self._lock:
            waiting = [window for window in self._windows.values() if window.needs_consumer]
            replaced = [self._try_replace(window) for window in waiting]
        if qos.prev is not None or all(replaced):
            self._update_count()
        if any(window.needs_consumer for window in waiting):
            qos.prev = None  # try again in the next round of the loop
        return int(qos.value)

    def _try_replace(self, window: _Window) -> bool:
        """Replace the consumer of a queue; False if the worker has no room for more messages."""
        if self._active_tags.get(window.queue) != window.tags[-1]:  # nobody consumes the queue now
            window.needs_consumer = False
        elif window.count() < self._consumer.qos.value:
            window.needs_consumer = False
            # Celery finds out by itself that the connection is lost.
            with suppress(*self._consumer.connection_errors, *self._consumer.channel_errors):
                self._replace_consumer(window)
        return not window.needs_consumer

    def _replace_consumer(self, window: _Window) -> None:
        """Consume a queue anew, without waiting for the broker's reply.

        The active consumer is cancelled last: a queue may be deleted with its last one.
        """
        consumer = self._consumer.task_consumer
        old = self._active_tags.pop(window.queue)
        queue = next(queue for queue in consumer.queues if queue.name == window.queue)
        new = consumer._basic_consume(queue, no_ack=consumer.no_ack)  # noqa: SLF001  # as above
        window.tags.append(new)
        self._by_tag[new] = window
        consumer.channel.basic_cancel(old, nowait=True)
        if len(window.tags) > tuning.PREFETCH_CONSUMER_COUNT:
            # A message of the consumer before has come. The broker executes commands in order, so
            # the first consumer had ended before, and no message of it can come any more.
            first = window.tags.pop(0)
            del self._by_tag[first]
            consumer.channel.callbacks.pop(first, None)
