"""Where a message would go: its queue, its priority, and when it expires."""

from __future__ import annotations

from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_throttle.bulk.capturing_producer import CapturedMessage
from celery_throttle.errors import FanOutError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.bindings import is_bound
from celery_throttle.tasks.messages.routing import rank_of


class DestinationReader:
    """Reads from an app's messages where they would go."""

    def __init__(self, throttle: AppLimits) -> None:
        self._app = throttle.app
        self._qualify = throttle.qualify
        self._driver_type = str(self._app.connection_for_write().transport.driver_type)

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
