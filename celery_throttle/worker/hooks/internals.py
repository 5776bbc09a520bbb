"""What is not public of Celery, kombu, billiard and redis-py, and is used here all the same.

It is read, replaced or wrapped. Each :class:`Internal` has a contract test in
``tests/worker/hooks/test_internals.py``. A worker also looks for them when it starts, and logs an
error for those that are no longer there. Add an entry before you use another internal; better, find
a public way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from celery import __version__
from celery.utils.log import get_logger

logger = get_logger(__name__)

#: The versions of Celery with which the contract tests have passed.
SEEN_IN = "5.5 to 5.7"


@dataclass(frozen=True, slots=True)
class Internal:
    """One internal mechanism of another package.

    Attributes:
        name: What it is called here, and in the name of its contract test.
        reason: Why no public way will do.
        static: Modules, each with names in it.
        live: A running worker's consumer or attributes of it, each with names of its attributes;
            an owner that is None need not have them.
        pool: The module of the only kind of pool whose workers use the internal; empty for all.
    """

    name: str
    reason: str
    static: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    pool: str = ""


INTERNALS = (
    Internal(
        "request",
        "Celery offers no hook between a free process and the start of a task.",
        static=(
            "celery.worker.request create_request_cls Request.execute_using_pool",
            "celery.worker.request Request.on_success Request._announce_revoked Request._context",
            "celery.worker.strategy proto1_to_proto2",
        ),
    ),
    Internal(
        "semaphore",
        "The queue of requests that wait for a process is not public, and the permits miscount.",
        static=("kombu.asynchronous.semaphore LaxBoundedSemaphore.release",),
        live=("consumer.controller.semaphore _waiting value initial_value",),
    ),
    Internal(
        "process pool",
        "billiard shows nowhere else which processes are idle, or have begun their task.",
        static=("billiard.pool ApplyResult._worker_lost Pool.handle_result_event",),
        live=(
            "consumer.pool._pool _processes _cache _putlock",
            "consumer.pool._pool _all_inqueues _active_writers _flush_writer",
        ),
        pool="celery.concurrency.prefork",
    ),
    Internal(
        "greenlet pool",
        "Before Celery 5.7, the number of greenlets of a gevent pool is not public.",
        live=("consumer.pool._pool size",),
        pool="celery.concurrency.gevent",
    ),
    Internal(
        "event loop",
        "The loop may wait a second although a timer is due; see docs/how-to/pools.md.",
        static=("kombu.asynchronous.hub Hub.fire_timers",),
        live=("consumer.hub _ready propagate_errors", "consumer.hub.timer _queue"),
    ),
    Internal(
        "rate limit",
        "A claimed task has its units, and must not wait in Celery's token bucket.",
        live=("consumer _limit_task _limit_post_eta apply_eta_task",),
    ),
    Internal(
        "strategies",
        "A message that comes again must not be announced again, nor wait for its eta.",
        static=("celery.worker.strategy default", "celery.app.task Task.start_strategy"),
        live=("consumer strategies update_strategies on_task_request on_task_message",),
    ),
    Internal(
        "event dispatcher",
        "Only its method shows the event task-received before it is sent.",
        static=("celery.events.dispatcher EventDispatcher.send",),
        live=("consumer.event_dispatcher buffer_group groups",),
    ),
    Internal(
        "broker consumer",
        "A message does not name its queue, and AMQP counts prefetched messages per consumer.",
        static=("kombu.messaging Consumer._basic_consume",),
        live=(
            "consumer.task_consumer _active_tags",
            "consumer.task_consumer.channel basic_consume",
            "consumer.qos prev",
        ),
    ),
    Internal(
        "app registry",
        "Tasks of an app that is not finalized, and the apps of a process, are not public.",
        static=("celery._state _get_active_apps get_current_worker_task",),
        live=("consumer.app _tasks _task_from_fun send_task",),
    ),
    Internal(
        "remote control",
        "Workers without this package log an error for a command that they do not know.",
        static=("celery.worker.control Panel.data",),
    ),
    Internal(
        "client socket",
        "redis-py does not show the socket of a connection, which the store uses itself.",
        static=("redis.connection AbstractConnection.can_read",),
    ),
)


def log_broken(consumer: Any) -> None:
    """Log an error for each internal that a worker does not find as it was."""
    for internal in INTERNALS:
        for path in find_missing(internal, consumer):
            logger.error(
                "Limits may not hold: %s of Celery %s has no %s any more (seen in Celery %s); "
                "report it to the maintainers of celery-global-throttle",
                *(internal.name, __version__, path, SEEN_IN),
            )


def find_missing(internal: Internal, consumer: Any) -> Iterator[str]:
    """Yield the attributes of an internal that are not there."""
    for line in internal.static:
        module, *names = line.split()
        yield from (f"{module}.{name}" for name in names if not _is_importable(module, name))
    if internal.pool not in ("", type(getattr(consumer, "pool", None)).__module__):
        return
    for line in internal.live:
        path, *names = line.split()
        owner: Any = consumer
        for each in path.split(".")[1:]:
            owner = getattr(owner, each, None)
        if owner is not None:
            yield from (f"{path}.{name}" for name in names if not hasattr(owner, name))


def _is_importable(module: str, name: str) -> bool:
    try:
        attrgetter(name)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
