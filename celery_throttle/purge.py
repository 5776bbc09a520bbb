"""Lets Celery's purges also discard and count the tasks that wait in lines.

``app.control.purge()`` and ``celery worker --purge`` use the control class of the app,
``celery purge`` and ``celery amqp queue.purge`` a channel of a connection that the app makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kombu import Connection
from kombu.utils.imports import symbol_by_name

from celery_throttle.messages.broker import broker_identity
from celery_throttle.operations.discard import discard
from celery_throttle.tasks.app_limits import AppLimits

#: The default control class, and ours. Named, not imported, as the import takes time.
_CELERY_CONTROL = "celery.app.control:Control"
_THROTTLED_CONTROL = "celery_throttle.control:ThrottledControl"


def include_lines(app: Any) -> None:
    """Let the purges of an app discard the tasks in lines of its queues."""
    control_class, connect = app.control_cls, app.connection_for_write
    app.control_cls = (
        _THROTTLED_CONTROL
        if control_class == _CELERY_CONTROL
        else type("ThrottledControl", (LinePurgeMixin, symbol_by_name(control_class)), {})
    )
    app.__dict__.pop("control", None)  # the app caches it at first use

    def connection_for_write(*args: Any, **options: Any) -> Connection:
        connection: Connection = connect(*args, **options)
        _include_lines_of(connection, app.throttle, connect)
        return connection

    app.connection_for_write = connection_for_write


class LinePurgeMixin:
    """Mixed into a control class: purges include lines."""

    app: Any

    def purge(self, connection: Any = None) -> int:
        """Discard all tasks that wait in the app's queues and their lines, and return how many."""
        count: int = super().purge(connection)  # type: ignore[misc]  # a mixin
        return count + _discard(self.app.throttle, self.app.amqp.queues.consume_from)

    discard_all = purge


def _include_lines_of(
    connection: Any, throttle: AppLimits, connect: Callable[[], Connection]
) -> None:
    """Let purges by channels of a connection include lines, if it is to the app's broker."""
    make_channel = connection.channel

    def discard_lines(queue: str) -> int:
        with connect() as app_connection:
            same_broker = broker_identity(app_connection) == broker_identity(connection)
        return _discard(throttle, [queue]) if same_broker else 0

    def channel() -> Any:
        new_channel = make_channel()
        purge = new_channel.queue_purge

        def queue_purge(queue: str, *args: Any, **options: Any) -> int:
            try:
                count = purge(queue, *args, **options) or 0
            except connection.channel_errors:
                # The broker has no such queue, but it may have lines.
                count = discard_lines(queue)
                if not count:
                    raise
                return count
            return int(count) + discard_lines(queue)

        new_channel.queue_purge = queue_purge
        return new_channel

    connection.channel = channel


def _discard(throttle: AppLimits, queues: Iterable[str]) -> int:
    """Discard the tasks in lines of some queues, and return how many.

    Raises:
        StoreError: the call failed; tasks discarded before it stay discarded.
    """
    if not throttle.settings.has_server:
        return 0
    names = map(throttle.qualify, queues)
    return sum(throttle.run_plan(discard(throttle.keys, name)) for name in names)
