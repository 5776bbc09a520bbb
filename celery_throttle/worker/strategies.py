"""Celery's strategies, which make a request of a message and hand it to the pool.

A strategy also announces the request as received: in the log, by the signal ``task_received`` and
by the event ``task-received``. A message that comes to a worker again has been announced, so its
request goes straight to the pool. It waits for no ``eta`` either: that has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.worker import state

from celery_throttle.messages.packing import SENT_BACK

Strategy = Callable[..., Any]


class ReceivedBeforeError(Exception):
    """Raised by a request that is made of a message with a true attribute ``received``.

    That is before its strategy announces it.

    Attributes:
        request: the request.
    """

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.request = request


class Strategies(dict[str, Strategy]):
    """The strategies of a consumer by the names of tasks. None announces a message twice.

    Args:
        consumer: Celery's.

    Attributes:
        receive: called with each message first.
    """

    def __init__(self, consumer: Any) -> None:
        self._c = consumer
        self.receive: Callable[[Any], None] | None = None
        super().__init__()
        for name, strategy in consumer.strategies.items():
            self[name] = strategy

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        """Celery sets all of them anew for a new connection or pool."""

        @wraps(strategy)
        def announce_once(
            message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any
        ) -> Any:
            if self.receive is not None:
                self.receive(message)
            if SENT_BACK in (message.headers or ()):
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
        self._c.on_task_request(request)
