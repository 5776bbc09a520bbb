"""Prefetch slots of messages that wait in this worker: other messages are to have them meanwhile.

Where the broker counts prefetched messages per channel, the prefetch count is raised by the number
of those that wait. RabbitMQ 4, and RabbitMQ 3 with quorum queues, count per consumer, and a new
count is for new consumers only. There, a queue gets a new consumer when a message of the last one
waits; such messages keep the slots of the last one, which is cancelled.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery.worker.consumer.tasks import Tasks

#: Consumers of a queue of which messages may come still, the active one included.
_KNOWN = 3


class Prefetch(ABC):
    """The prefetch slots of one connection to the broker. Called from any thread."""

    @abstractmethod
    def receive(self, message: Any) -> None:
        """Note a message that came from the broker or out of a line."""

    @abstractmethod
    def free(self, message: Any) -> None:
        """A message waits: another one may have its slot."""

    @abstractmethod
    def take(self, message: Any) -> None:
        """A message waits no more."""


def prefetch_of(consumer: Any) -> Prefetch:
    """The right one for Celery's consumer and its broker."""
    if consumer.connection.transport.driver_type == "amqp" and not _counts_per_channel(consumer):
        return ConsumerPrefetch(consumer)
    return ChannelPrefetch(consumer)


def _counts_per_channel(consumer: Any) -> bool:
    known: bool | None = getattr(consumer, "qos_global", None)
    # Celery keeps it since 5.6.
    return Tasks.qos_global(None, consumer) if known is None else known  # type: ignore[arg-type]  # it uses no `self`


class ChannelPrefetch(Prefetch):
    """One count for all queues, which can be changed at any time."""

    def __init__(self, consumer: Any) -> None:
        self._c = consumer

    def receive(self, message: Any) -> None:
        """Nothing: the broker counts."""

    def free(self, _message: Any) -> None:
        """See :class:`Prefetch`; the count is raised in the next turn of Celery's loop."""
        self._c.qos.increment_eventually()

    def take(self, _message: Any) -> None:
        """See :class:`Prefetch`; the count is lowered in the next turn of Celery's loop."""
        self._c.qos.decrement_eventually()


@dataclass
class _Window:
    """The prefetched messages of one queue.

    Attributes:
        queue: its name.
        tags: of its consumers: the active one last, and two that are cancelled.
        messages: prefetched and not waiting; some are acknowledged already.
        full: whether a message of the active consumer waits.
    """

    queue: str
    tags: list[str] = field(default_factory=list)
    messages: set[Any] = field(default_factory=set)
    full: bool = False

    def count(self) -> int:
        """How many messages are prefetched, without those that wait."""
        self.messages = {message for message in self.messages if not message.acknowledged}
        return len(self.messages)


class ConsumerPrefetch(Prefetch):
    """A count for each consumer, which a consumer keeps.

    A queue gets a new consumer when a message of the active one waits, but only while fewer
    messages than the count allows are here and do not wait. Others may be on their way from the
    last two consumers then, so for a moment a worker has up to three times as many as it allows.
    """

    def __init__(self, consumer: Any) -> None:
        self._c = consumer
        self._windows: dict[str, _Window] = {}
        self._by_tag: dict[str, _Window] = {}
        self._lock = threading.RLock()
        # Celery's loop calls it in each turn in which `prev` of the same is not `value`.
        self._update_count = consumer.qos.update
        consumer.qos.update = self._update

    def receive(self, message: Any) -> None:
        """See :class:`Prefetch`; a message out of a line has no slot."""
        if hasattr(message, "claim"):
            return
        with self._lock:
            window = self._window_of(message.delivery_info["consumer_tag"])
            if window is not None:
                message.throttle_queue = window.queue
                window.messages.add(message)
                if len(window.messages) > 2 * self._c.qos.value:
                    window.count()

    def _window_of(self, tag: str) -> _Window | None:
        """The window of a consumer that is active, or was cancelled not long ago."""
        if tag not in self._by_tag:
            for queue, active in self._active_tags.items():
                if active not in self._by_tag:
                    self._by_tag[active] = self._windows[queue] = _Window(queue, [active])
        return self._by_tag.get(tag)

    @property
    def _active_tags(self) -> dict[str, str]:
        tags: dict[str, str] = self._c.task_consumer._active_tags  # noqa: SLF001  # kombu has no other way
        return tags

    def _window_with(self, message: Any) -> _Window | None:
        """The window that a message was received in; none of a message out of a line."""
        queue = None if hasattr(message, "claim") else getattr(message, "throttle_queue", None)
        return None if queue is None else self._windows.get(queue)

    def free(self, message: Any) -> None:
        """See :class:`Prefetch`; its queue is consumed anew, if its consumer is the active one."""
        window = self._window_with(message)
        if window is not None:
            with self._lock:
                window.messages.discard(message)
                if message.delivery_info["consumer_tag"] == window.tags[-1]:
                    window.full = True
                if window.full and not self._renewed(window):
                    self._c.qos.prev = None

    def take(self, message: Any) -> None:
        """See :class:`Prefetch`; it counts like any other."""
        window = self._window_with(message)
        if window is not None:
            with self._lock:
                window.messages.add(message)

    def _update(self) -> int:
        """Try again to renew what is full; else it is for Celery, which may have a new count."""
        qos = self._c.qos
        with self._lock:
            full = [window for window in self._windows.values() if window.full]
            tried = [self._renewed(window) for window in full]
        if qos.prev is not None or all(tried):
            self._update_count()
        if any(window.full for window in full):
            qos.prev = None  # in the next turn of the loop, perhaps
        return int(qos.value)

    def _renewed(self, window: _Window) -> bool:
        """Whether a queue is consumed anew, or need not be; there may be no room for more of it."""
        if self._active_tags.get(window.queue) != window.tags[-1]:  # it is consumed no more
            window.full = False
        elif window.count() < self._c.qos.value:
            window.full = False
            # Celery finds out by itself that the connection is lost.
            with suppress(*self._c.connection_errors, *self._c.channel_errors):
                self._renew(window)
        return not window.full

    def _renew(self, window: _Window) -> None:
        """Nothing waits for an answer here.

        The active consumer is cancelled last: a queue may be deleted with its last one.
        """
        consumer = self._c.task_consumer
        old = self._active_tags.pop(window.queue)
        queue = next(queue for queue in consumer.queues if queue.name == window.queue)
        new = consumer._basic_consume(queue, no_ack=consumer.no_ack)  # noqa: SLF001  # as above
        window.tags.append(new)
        self._by_tag[new] = window
        consumer.channel.basic_cancel(old, nowait=True)
        if len(window.tags) > _KNOWN:
            # A message of the one before the new one has come. The broker does what it is told in
            # order, so it had ended the first one before.
            first = window.tags.pop(0)
            del self._by_tag[first]
            consumer.channel.callbacks.pop(first, None)
