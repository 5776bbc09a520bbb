"""Celery's purges discard what waits in lines, too, and count it.

``app.control.purge()`` and ``celery worker --purge`` go through the app's control class;
``celery purge`` and ``celery amqp queue.purge`` go through a channel of a connection that the app
makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kombu.utils.imports import symbol_by_name

from celery_throttle.messages.broker import broker_identity
from celery_throttle.operations.discard import discard

if TYPE_CHECKING:
    from kombu import Connection

    from celery_throttle.app import Throttle

#: Of apps that have none of their own. It is named, as importing it takes time.
_CONTROL, _OURS = "celery.app.control:Control", "celery_throttle.control:ThrottledControl"


def include_lines(app: Any) -> None:
    """Let the purges of an app discard what waits in lines of its queues."""
    own, connect = app.control_cls, app.connection_for_write
    app.control_cls = (
        _OURS
        if own == _CONTROL
        else type("ThrottledControl", (PurgesLines, symbol_by_name(own)), {})
    )
    app.__dict__.pop("control", None)  # the app caches it at first use

    def connection_for_write(*args: Any, **options: Any) -> Connection:
        connection: Connection = connect(*args, **options)
        _include_lines_of(connection, app.throttle, connect)
        return connection

    app.connection_for_write = connection_for_write


class PurgesLines:
    """Mixed into a control class."""

    app: Any

    def purge(self, connection: Any = None) -> int:
        """Discard all tasks that wait in the app's queues and their lines; gives how many."""
        count: int = super().purge(connection)  # type: ignore[misc]  # mixed in
        return count + _discard(self.app.throttle, self.app.amqp.queues.consume_from)

    discard_all = purge


def _include_lines_of(
    connection: Any, throttle: Throttle, connect: Callable[[], Connection]
) -> None:
    """The same for what is purged by channels of one connection, if it is to the app's broker."""
    make = connection.channel

    def lines_of(queue: str) -> int:
        with connect() as own:
            ours = broker_identity(own) == broker_identity(connection)
        return _discard(throttle, [queue]) if ours else 0

    def channel() -> Any:
        made = make()
        purge = made.queue_purge

        def queue_purge(queue: str, *args: Any, **options: Any) -> int:
            try:
                count = purge(queue, *args, **options) or 0
            except (
                connection.channel_errors
            ):  # the broker has no such queue, but there may be lines
                count = lines_of(queue)
                if not count:
                    raise
                return count
            return int(count) + lines_of(queue)

        made.queue_purge = queue_purge
        return made

    connection.channel = channel


def _discard(throttle: Throttle, queues: Iterable[str]) -> int:
    """Discard the tasks in lines of some queues, under earlier names too; gives how many.

    Raises:
        StoreError: the server cannot be asked; what was discarded before is gone.
    """
    if not throttle.settings.has_server:
        return 0
    names = [name for queue in queues for name in (queue, throttle.qualify(queue))]
    return sum(throttle.run_plan(discard(throttle.keys, name)) for name in names)
