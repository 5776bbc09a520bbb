"""Celery's strategies, which make a request of a message and hand it to the pool.

A strategy also announces the request as received: in the log, by the signal ``task_received`` and
by the event ``task-received``. A message that comes to a worker again has been announced before, so
its request goes straight to the pool. It does not wait for an ``eta`` either: that has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.worker import state

from celery_throttle.messages.packing import REPUBLISHED_HEADER

Strategy = Callable[..., Any]


class ReceivedBeforeError(Exception):
    """Raised by the request of a message with a true attribute ``received``.

    That is before its strategy announces the request.
    """

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.request = request


class Strategies(dict[str, Strategy]):
    """The strategies of a consumer by the names of tasks. None announces a message twice."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        #: Called first with each message that is given to a strategy.
        self.on_message: Callable[[Any], None] | None = None
        super().__init__()
        for name, strategy in consumer.strategies.items():
            self[name] = strategy

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        """Wrap a strategy. Celery sets all of them anew for a new connection or pool."""

        @wraps(strategy)
        def announce_once(
            message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any
        ) -> Any:
            if self.on_message is not None:
                self.on_message(message)
            if REPUBLISHED_HEADER in (message.headers or ()):
                message.received = True
            try:
                return strategy(message, body, ack, reject, callbacks, **options)
            except ReceivedBeforeError as error:
                return self._pass_on(error.request, callbacks)

        super().__setitem__(name, announce_once)

    def _pass_on(self, request: Any, callbacks: Any) -> None:
        if request.revoked():
            return
        state.task_reserved(request)
        for callback in callbacks:
            callback(request)
        self._consumer.on_task_request(request)
