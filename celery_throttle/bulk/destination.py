"""The line of a message: that of its queue, and of the limits and keys that it needs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_throttle.bulk.capturing_producer import CapturedMessage
from celery_throttle.errors import FanOutError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.bindings import is_bound
from celery_throttle.tasks.messages.routing import rank_of

_CACHE_SIZE = 2048


class Destination(NamedTuple):
    """A line."""

    queue: str  #: named with its broker
    refs: tuple[LimitRef, ...]
    line: str  #: its key in Redis


class DestinationResolver:
    """Finds the lines of an app's messages."""

    def __init__(self, throttle: AppLimits) -> None:
        self._app = throttle.app
        self._keys = throttle.keys
        self._qualify = throttle.qualify
        self._driver_type = str(self._app.connection_for_write().transport.driver_type)
        self.resolve = lru_cache(_CACHE_SIZE)(self._resolve)

    def _resolve(self, queue: str, refs: tuple[LimitRef, ...]) -> Destination:
        """Return the line of a queue for some limits and keys."""
        return Destination(queue, refs, self._keys.line(queue, refs))

    def queue_of(self, message: CapturedMessage) -> str:
        """Return the queue that a message would be sent to, named with its broker.

        Raises:
            FanOutError: the app does not know which queue that is.
        """
        return self._qualify(self._queue_name(message))

    def _queue_name(self, message: CapturedMessage) -> str:
        info = message.delivery_info
        exchange, routing_key = info["exchange"], info["routing_key"]
        if not exchange:  # the default exchange of brokers
            return str(routing_key)
        queues = [*message.queues, *self._app.amqp.queues.values()]
        names = {
            str(queue.name)
            for queue in queues
            if is_bound(queue, exchange, routing_key, self._driver_type)
        }
        if len(names) == 1:
            return names.pop()
        raise FanOutError(
            f"task {message.headers['task']!r} goes to exchange {shown(exchange)} with routing key "
            f"{shown(routing_key)}, to which {len(names)} queues of the app are bound; allowed: one"
        )

    def rank_of(self, message: CapturedMessage) -> int:
        """See :func:`celery_throttle.tasks.messages.routing.rank_of`."""
        return rank_of(message.properties["priority"], self._driver_type)

    def expires_us(self, message: CapturedMessage) -> int:
        """Return when a message expires, in microseconds since the epoch; 0 for never."""
        text: Any = message.headers.get("expires")
        if text is None:
            return 0
        expires: Any = maybe_iso8601(text)
        return to_us(maybe_make_aware(expires, self._app.timezone).timestamp())
