"""Captures the messages that Celery would send, and sends them to their lines.

Celery's own code makes each message, and publishes it through a kombu producer that it may be
given. This one captures the message, so that routes, signals, events, headers and serializers are
Celery's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Producer, Queue
from kombu.compression import get_encoder
from kombu.exceptions import DecodeError
from kombu.serialization import dumps, loads

from celery_throttle.errors import FanOutError, ThrottleError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.waiting import LineTasks, Mode, ParkRequest, park
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import computed_headers
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.routing import is_bound, rank_of
from celery_throttle.tasks.task_limits import TaskLimits

logger = get_logger(__name__)

#: Arguments of ``Producer.publish`` that are not part of the message.
_PUBLISH_OPTIONS = frozenset(
    ("retry", "retry_policy", "timeout", "confirm_timeout", "mandatory", "immediate")
)

#: Types of values that every serializer leaves as they are.
_UNCHANGED = frozenset((str, int, float, bool, type(None)))

#: A task with one of these options goes to the broker, whatever ``throttle_publish`` is.
_BROKER_OPTIONS = ("eta", "countdown", "producer", "publisher", "connection")


@dataclass(frozen=True, slots=True)
class CapturedMessage:
    """A message as a worker would get it, before ``tasks/messages/packing.py`` packs it."""

    payload: Any  #: the body before it was serialized
    body: str | bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    delivery_info: dict[str, Any]  #: `exchange` and `routing_key`
    queues: tuple[Queue, ...]  #: those that it was to be sent to, as far as Celery knows

    def requirement(self, limits: TaskLimits) -> Requirement | None:
        """Return what the task requires; see :func:`requirement_of`."""
        args, kwargs, _ = self.payload
        content = self.content_type, self.content_encoding, self.body
        return requirement_of(limits, args, kwargs, content)


def requirement_of(
    limits: TaskLimits, args: Any, kwargs: Any, content: tuple[str, str, str | bytes]
) -> Requirement | None:
    """Return what a call requires, by its arguments as a worker reads them.

    A serializer may turn a value into another one, such as a UUID into its text, which is another
    key. ``content``: its type, its encoding, and the serialized data, which begin with the
    arguments.

    Raises:
        ThrottleError: see :meth:`TaskLimits.requirement`.
        DecodeError: this process cannot read the data.
    """
    if limits.fixed is not None:
        return limits.fixed
    computed = limits.computed is not None
    values = (*args, *kwargs.values()) if computed else limits.reader.read(args, kwargs)
    if not all(type(value) in _UNCHANGED for value in values):
        content_type, content_encoding, data = content
        args, kwargs, *_ = loads(data, content_type, content_encoding, accept={content_type})
    return limits.requirement(args, kwargs)


class CapturingProducer:
    """A producer that captures the messages of tasks. All else is published as ever.

    ``capture`` takes each message, and a function that publishes it after all.
    """

    def __init__(
        self,
        producer: Producer,
        driver_type: str,
        capture: Callable[[CapturedMessage, Callable[[], Any]], Any],
    ) -> None:
        self._producer = producer
        self._driver_type = driver_type
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the producer."""
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Capture the message of a task; publish other messages, such as events."""
        publish = partial(self._producer.publish, body, **options)
        headers = options.get("headers") or {}
        if "task" not in headers or "id" not in headers:
            return publish()
        return self._capture(_build_message(body, options, self._driver_type), publish)


def _build_message(body: Any, options: Mapping[str, Any], driver_type: str) -> CapturedMessage:
    """Return the message that kombu would make of the arguments of ``Producer.publish``."""
    properties = {key: value for key, value in options.items() if key not in _PUBLISH_OPTIONS}
    exchange, routing_key = properties.pop("exchange"), properties.pop("routing_key")
    serializer, compression = properties.pop("serializer"), properties.pop("compression")
    headers, declare = dict(properties.pop("headers")), properties.pop("declare") or ()
    expiration = properties.pop("expiration", None)
    if expiration is not None:
        properties["expiration"] = str(int(expiration * 1000))
    content_type, content_encoding, data = dumps(body, serializer=serializer)
    if compression:
        # kombu leaves this header when it decompresses a message for a worker.
        headers["compression"] = get_encoder(compression)[1]  # type: ignore[index]  # wrong in the stubs
    properties["priority"] = properties.get("priority") or 0
    name = getattr(exchange, "name", exchange)
    return CapturedMessage(
        payload=body,
        body=as_delivered(data, "" if compression else driver_type),
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties=properties,
        delivery_info={"exchange": name or "", "routing_key": routing_key},
        queues=tuple(declare),
    )


def as_delivered(data: str | bytes, driver_type: str) -> str | bytes:
    """Return a serialized body as workers get it: only with AMQP, text comes as text."""
    return data.encode() if isinstance(data, str) and driver_type != "amqp" else data


class DestinationReader:
    """Reads from an app's messages where they would go."""

    def __init__(self, throttle: AppLimits) -> None:
        self._app = throttle.app
        self._qualify = throttle.qualify
        #: The kind of the broker, such as "amqp" or "redis".
        self.driver_type = str(self._app.connection_for_write().transport.driver_type)

    def read(self, message: CapturedMessage) -> tuple[str, int, int]:
        """Return the queue of a message, the rank of its priority, and when it expires.

        The queue is named with its broker. The time is in microseconds since the epoch, 0 for
        never.

        Raises:
            FanOutError: the app does not know which queue that is.
        """
        moment: Any = maybe_iso8601(message.headers.get("expires"))
        expires = maybe_make_aware(moment, self._app.timezone).timestamp() if moment else 0
        rank = rank_of(message.properties["priority"], self.driver_type)
        return self._qualify(self._queue_of(message)), rank, to_us(expires)

    def _queue_of(self, message: CapturedMessage) -> str:
        exchange, routing_key = message.delivery_info.values()
        if not exchange:  # the default exchange of brokers
            return str(routing_key)
        names = {
            str(queue.name)
            for queue in (*message.queues, *self._app.amqp.queues.values())
            if is_bound(queue, exchange, routing_key, self.driver_type)
        }
        if len(names) == 1:
            return names.pop()
        raise FanOutError(
            f"task {message.headers['task']!r} goes to exchange {shown(exchange)} with routing key "
            f"{shown(routing_key)}, to which {len(names)} queues of the app are bound; allowed: one"
        )


class LinePublisher:
    """``throttle_publish = "line"``: sends tasks to the end of the lines at their limits.

    Through the broker they would only reach a worker that parks them. The broker gets a task if
    nothing waits at its limits, if it has no limits or a time of its own, and while the server of
    its limits cannot be reached.
    """

    def __init__(self, throttle: AppLimits) -> None:
        self._throttle = throttle
        self._destinations = DestinationReader(throttle)

    def send(self, apply_async: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> Any:
        """Send a task by Celery's own ``apply_async``."""
        if any(options.get(name) for name in _BROKER_OPTIONS):
            return apply_async(args, kwargs, **options)
        with self._throttle.app.producer_or_acquire() as producer:
            driver_type = self._destinations.driver_type
            options["producer"] = CapturingProducer(producer, driver_type, self._capture)
            return apply_async(args, kwargs, **options)

    def _capture(self, message: CapturedMessage, publish: Callable[[], Any]) -> Any:
        limits = self._throttle.task_limits(self._throttle.app.tasks[message.headers["task"]])
        if limits is None or not self._join(message, limits):
            return publish()
        return None

    def _join(self, message: CapturedMessage, limits: TaskLimits) -> bool:
        """Let a message join its line. False if it did not, or if that is unknown."""
        throttle, task_id = self._throttle, message.headers["id"]
        try:
            requirement = message.requirement(limits)
            if requirement is None:
                return False
            throttle.look_up_keys(requirement.refs)
            queue, rank, expires = self._destinations.read(message)
            packed = packing.pack(message, computed_headers(limits, requirement))
            request = ParkRequest(
                task_id,
                packed,
                requirement,
                rank=rank,
                expires=expires,
                max_wait=limits.max_wait,
                mode=Mode.JUST_SENT,  # it takes no units: tasks that wait already come first
                settles=limits.settles,
            )
            kept = limits.kept.for_task(returns=bool(message.headers.get("retries")))
            name = message.headers["task"]
            line = LineTasks(queue, [request], kept=kept, task_name=name)
            (reply,) = throttle.run_in_shard(requirement.refs, lambda shard: park(shard, [line]))
        except (ThrottleError, DecodeError) as error:  # the worker fails a task with a wrong key
            logger.debug("Task %s goes to the broker: %s", task_id, error)
            return False
        return bool(reply[0] == b"parked")
