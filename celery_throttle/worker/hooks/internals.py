"""What is not public of Celery, kombu, billiard and redis-py, and is used here all the same.

It is read, replaced or wrapped. Each :class:`Internal` has a contract test in
``tests/worker/hooks/test_internals.py``. A worker also looks for them when it starts, and logs an
error for those that are no longer there. Add an entry before you use another internal; better, find
a public way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
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
        used_in: The modules of this package that use it.
        static: Attributes of modules, as ``module:name.name``.
        live: Attributes of a running worker's consumer, as ``name.name``, unless the object that
            should have them is None.
        pool: The module of the only kind of pool whose workers use the internal; empty for all.
    """

    name: str
    reason: str
    used_in: tuple[str, ...]
    static: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    pool: str = ""


INTERNALS = (
    Internal(
        "request",
        "Celery offers no hook between a free process and the start of a task.",
        ("worker.request", "worker.admission.gate", "worker.waiting.announcements"),
        static=(
            "celery.worker.request:create_request_cls",
            "celery.worker.request:Request.execute_using_pool",
            "celery.worker.request:Request.on_success",
            "celery.worker.request:Request._announce_revoked",
            "celery.worker.request:Request._context",
            "celery.worker.strategy:proto1_to_proto2",
        ),
    ),
    Internal(
        "semaphore",
        "The queue of requests that wait for a process is not public, and the permits miscount.",
        ("worker.hooks.pool",),
        static=("kombu.asynchronous.semaphore:LaxBoundedSemaphore.release",),
        live=(
            "controller.semaphore._waiting",
            "controller.semaphore.value",
            "controller.semaphore.initial_value",
        ),
    ),
    Internal(
        "process pool",
        "billiard shows nowhere else which processes are idle, or have begun their task.",
        ("worker.hooks.pool", "worker.hooks.pool_shutdown"),
        static=(
            "billiard.pool:ApplyResult._worker_lost",
            "billiard.pool:Pool.handle_result_event",
        ),
        pool="celery.concurrency.prefork",
        live=(
            "pool._pool._processes",
            "pool._pool._cache",
            "pool._pool._putlock",
            "pool._pool._all_inqueues",
            "pool._pool._active_writers",
            "pool._pool._flush_writer",
        ),
    ),
    Internal(
        "greenlet pool",
        "Before Celery 5.7, the number of greenlets of a gevent pool is not public.",
        ("worker.hooks.pool",),
        pool="celery.concurrency.gevent",
        live=("pool._pool.size",),
    ),
    Internal(
        "event loop",
        "The loop may wait a second although a timer is due; see docs/how-to/pools.md.",
        ("worker.hooks.timers",),
        static=("kombu.asynchronous.hub:Hub.fire_timers",),
        live=("hub._ready", "hub.timer._queue", "hub.propagate_errors"),
    ),
    Internal(
        "rate limit",
        "A claimed task has its units, and must not wait in Celery's token bucket.",
        ("worker.hooks.strategies",),
        live=("_limit_task", "_limit_post_eta", "apply_eta_task"),
    ),
    Internal(
        "strategies",
        "A message that comes again must not be announced again, nor wait for its eta.",
        ("worker.hooks.strategies",),
        static=("celery.worker.strategy:default", "celery.app.task:Task.start_strategy"),
        live=("strategies", "update_strategies", "on_task_request", "on_task_message"),
    ),
    Internal(
        "event dispatcher",
        "Only its method shows the event task-received before it is sent.",
        ("worker.hooks.task_events",),
        static=("celery.events.dispatcher:EventDispatcher.send",),
        live=("event_dispatcher.buffer_group", "event_dispatcher.groups"),
    ),
    Internal(
        "broker consumer",
        "A message does not name its queue, and AMQP counts prefetched messages per consumer.",
        ("messages.routing", "worker.waiting.prefetch"),
        static=("kombu.messaging:Consumer._basic_consume",),
        live=("task_consumer._active_tags", "task_consumer.channel.basic_consume", "qos.prev"),
    ),
    Internal(
        "app registry",
        "Tasks of an app that is not finalized, and the apps of a process, are not public.",
        ("app", "tasks.app_limits", "tasks.context", "tasks.task"),
        static=("celery._state:_get_active_apps", "celery._state:get_current_worker_task"),
        live=("app._tasks", "app._task_from_fun", "app.send_task"),
    ),
    Internal(
        "remote control",
        "Workers without this package log an error for a command that they do not know.",
        ("worker.status.remote_control", "worker.membership.split_limits"),
        static=("celery.worker.control:Panel.data",),
    ),
    Internal(
        "client socket",
        "redis-py does not show the socket of a connection, which the store uses itself.",
        ("store.connection", "worker.claims.wakeup"),
        static=("redis.connection:AbstractConnection.can_read",),
    ),
)


def log_broken(consumer: Any) -> None:
    """Log an error for each internal that a worker does not find as it was."""
    for internal in INTERNALS:
        for path in find_missing(internal, consumer):
            logger.error(
                "Limits may not hold: %s of Celery %s has no %s any more (seen in Celery %s); "
                "report it to celery-throttle",
                *(internal.name, __version__, path, SEEN_IN),
            )


def find_missing(internal: Internal, consumer: Any) -> Iterator[str]:
    """Yield the attributes of an internal that are not there."""
    for path in internal.static:
        module, _, names = path.partition(":")
        try:
            reduce(getattr, names.split("."), import_module(module))
        except (ImportError, AttributeError):
            yield path
    if internal.pool not in ("", type(getattr(consumer, "pool", None)).__module__):
        return
    for path in internal.live:
        *owners, name = path.split(".")
        owner: Any = consumer
        for each in owners:
            owner = getattr(owner, each, None)
        if owner is not None and not hasattr(owner, name):
            yield f"consumer.{path}"
