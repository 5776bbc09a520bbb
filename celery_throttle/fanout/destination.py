"""Which line a message belongs in: that of its queue and of the limits and keys that it needs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_throttle.errors import FanOutError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.messages.bindings import is_bound
from celery_throttle.messages.routing import rank_of

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.fanout.capturing_producer import Sent
    from celery_throttle.limits.key import LimitRef

#: Lines whose names are kept.
_KEPT = 2048


class Place(NamedTuple):
    """A line: its queue, named with its broker; its limits and keys, and its name."""

    queue: str
    refs: tuple[LimitRef, ...]
    line: str


class Places:
    """Of one app."""

    def __init__(self, throttle: Throttle) -> None:
        self._app = throttle.app
        self._keys = throttle.keys
        self._qualify = throttle.qualify
        self._driver_type = str(self._app.connection_for_write().transport.driver_type)
        self.line = lru_cache(_KEPT)(self._line)

    def _line(self, queue: str, refs: tuple[LimitRef, ...]) -> Place:
        """The line of a queue for some limits and keys."""
        return Place(queue, refs, self._keys.line(queue, refs))

    def queue_of(self, sent: Sent) -> str:
        """The queue that a message would be in, named with its broker.

        Raises:
            FanOutError: it cannot be told from what the app knows.
        """
        return self._qualify(self._name_of_queue(sent))

    def _name_of_queue(self, sent: Sent) -> str:
        exchange, routing_key = sent.delivery_info["exchange"], sent.delivery_info["routing_key"]
        if not exchange:  # the default exchange of brokers
            return str(routing_key)
        queues = [*sent.queues, *self._app.amqp.queues.values()]
        names = {
            str(queue.name)
            for queue in queues
            if is_bound(queue, exchange, routing_key, self._driver_type)
        }
        if len(names) == 1:
            return names.pop()
        raise FanOutError(
            f"task {sent.headers['task']!r} goes to exchange {shown(exchange)} with routing key "
            f"{shown(routing_key)}, to which {len(names)} queues of the app are bound; allowed: one"
        )

    def rank_of(self, sent: Sent) -> int:
        """See :func:`celery_throttle.messages.routing.rank_of`."""
        return rank_of(sent.properties["priority"], self._driver_type)

    def expires_us(self, sent: Sent) -> int:
        """When a message expires, in microseconds since the epoch; 0 for never."""
        text: Any = sent.headers.get("expires")
        if text is None:
            return 0
        expires: Any = maybe_iso8601(text)
        return to_us(maybe_make_aware(expires, self._app.timezone).timestamp())
