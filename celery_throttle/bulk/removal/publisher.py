"""Drain and move: sends withdrawn tasks to the broker, as they were before they waited."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from amqp.exceptions import FrameError, FrameSyntaxError, MessageNacked, PreconditionFailed
from amqp.serialization import dumps
from kombu import Producer
from kombu.serialization import prepare_accept_content

from celery_throttle.bulk.removal.withdrawal import Disposal, WithdrawnTask
from celery_throttle.errors import PublishRejectedError, QueueNotFoundError
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.publishing import confirming, publish


class QueuePublisher(Disposal):
    """Sends tasks to the queues in whose lines they waited, or all of them to another queue.

    A queue that the app knows is declared first, as Celery does when it sends a task.

    Raises:
        QueueNotFoundError: the app does not know the other queue and may not create it.
    """

    def __init__(self, app: Any, target: str | None = None) -> None:
        self.purpose = "drain" if target is None else "move"
        self.target = "" if target is None else f" to queue {target}"
        self._app = app
        self._target = target
        self._accept = prepare_accept_content(app.conf.accept_content)
        self._declared: set[str] = set()
        self._is_returned = False
        if target is not None:
            try:
                app.amqp.queues[target]  # creates it, if missing queues may be created
            except KeyError:
                raise QueueNotFoundError(
                    f"queue {target!r} is not in task_queues, and task_create_missing_queues is off"
                ) from None

    def __enter__(self) -> None:
        connection = self._connection = confirming(self._app.connection_for_write())
        connection.ensure_connection(max_retries=1)
        # With other transports no queue can be missing.
        is_amqp = connection.transport.driver_type == "amqp"
        on_return = self._note_return if is_amqp else None
        self._frame_max = connection.connection.frame_max if is_amqp else 0
        self._producer = Producer(connection, auto_declare=False, on_return=on_return)

    def __exit__(self, *_: object) -> None:
        self._connection.release()

    def identities(self, tasks: Sequence[WithdrawnTask]) -> list[str]:
        """Return the identities of the messages, which workers may park again."""
        identities = []
        for task in tasks:
            with suppress(Exception):  # no worker has parked a message that cannot be read
                fields = packing.task_fields(self._unpack(task))
                identities.append(packing.identity(fields["id"], fields))
        return identities

    def dispose(self, task: WithdrawnTask, queue: str) -> None:
        """Send a task, and wait until the broker has it.

        Raises:
            QueueNotFoundError: the broker has no such queue.
            PublishRejectedError: the queue takes no more messages.
            ValueError: the message cannot be read or sent.
        """
        name = queue if self._target is None else self._target
        if name not in self._declared:
            self._declare(name)
        message = self._unpack(task)
        try:
            self._check_headers(message.headers)
            publish(self._producer, message, "", name, mandatory=True)
        except MessageNacked as error:
            raise PublishRejectedError(
                f"queue {name!r} takes no more messages: RabbitMQ has rejected task {task.id}. If "
                "the queue is full, let workers empty it, or move the tasks to another queue"
            ) from error
        except FrameError as error:  # RabbitMQ has closed the connection
            self._producer.revive(self._connection.channel())
            raise ValueError(str(error)) from error
        except (PreconditionFailed, FrameSyntaxError, struct.error) as error:
            raise ValueError(str(error)) from error
        if self._is_returned:
            raise QueueNotFoundError(f"the broker has no queue {name!r}, nor is it in task_queues")

    def _unpack(self, task: WithdrawnTask) -> packing.ClaimedMessage:
        return packing.unpack(task.packed, self._accept)

    def _check_headers(self, headers: dict[str, Any]) -> None:
        """Check that RabbitMQ can read the headers of a message.

        Otherwise it closes the connection, and does not say why if the body is large.
        """
        size = len(dumps("F", (headers,))) if self._frame_max else 0
        if size > self._frame_max:
            raise ValueError(
                f"its headers have {size:,} bytes; RabbitMQ allows {self._frame_max:,} (frame_max)"
            )

    def _declare(self, name: str) -> None:
        queues = self._app.amqp.queues
        if name in queues:
            queues[name](self._producer.channel).declare()
        self._declared.add(name)

    def _note_return(self, *_: object) -> None:
        self._is_returned = True
