"""Celery's strategies, which make a request of a message and hand it to the pool.

A strategy also announces the request as received: in the log, by the signal ``task_received`` and
by the event ``task-received``. A message that comes to a worker again has been announced before, so
its request goes straight to the pool. It does not wait for an ``eta`` either: that has passed.

A task may have its own strategy, which may do anything with a message. That of celery-batches
collects messages, and never hands a request to the pool. So such a strategy gets a message only
when the task may start: before that, a request made by Celery's strategy, which announces nothing,
passes the gate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from celery import Task
from celery.worker import state
from celery.worker.strategy import default
from kombu.utils.imports import symbol_by_name

from celery_throttle.tasks.messages.packing import REPUBLISHED_HEADER, is_claimed

Strategy = Callable[..., Any]


class ReceivedBeforeError(Exception):
    """Raised by the request of a message with a true attribute ``received``.

    That is before its strategy announces the request.
    """

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.request = request


class Strategies(dict[str, Strategy]):
    """The strategies of a consumer by the names of tasks, each behind the gate.

    Args:
        consumer: the consumer.
        install: lets the requests of a task pass the gate; returns whether they did not before.
        has_limits: returns whether a request has limits.
    """

    def __init__(
        self,
        consumer: Any,
        install: Callable[[Task], bool],
        has_limits: Callable[[Any], bool],
    ) -> None:
        self._consumer = consumer
        self._install = install
        self._has_limits = has_limits
        #: Called first with each message that is given to a strategy.
        self.on_message: Callable[[Any], None] | None = None
        super().__init__()
        for name, strategy in consumer.strategies.items():
            self[name] = strategy

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        """Wrap a strategy. Celery sets all of them anew for a new connection or pool."""
        consumer = self._consumer
        task = consumer.app.tasks[name]
        if self._install(task):  # the task was defined after the worker had started
            strategy = task.start_strategy(consumer.app, consumer)
        # Resolved now: tracers may have replaced Celery's.
        is_celerys = symbol_by_name(task.Strategy) is symbol_by_name(Task.Strategy)
        wrapped = self._announce_once(strategy) if is_celerys else self._admit_first(task, strategy)
        super().__setitem__(name, wraps(strategy)(wrapped))

    def _announce_once(self, strategy: Strategy) -> Strategy:
        """Wrap Celery's strategy, so that it does not announce a message twice."""

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
                return self._pass_on(error.request)

        return announce_once

    def _admit_first(self, task: Task, strategy: Strategy) -> Strategy:
        """Wrap a task's own strategy, so that it gets a message when the task may start."""
        make_request = default(task, self._consumer.app, self._consumer)

        def admit_first(
            message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any
        ) -> None:
            if self.on_message is not None:
                self.on_message(message)

            def give(ack: Any, reject: Any) -> None:
                message.received = False  # the strategy announces its own request
                strategy(message, body, ack, reject, callbacks, **options)

            message.received = True
            try:
                make_request(message, body, ack, reject, callbacks)
            except ReceivedBeforeError as error:
                request = error.request
            claimed = is_claimed(message)
            if not claimed and not self._has_limits(request):
                give(ack, reject)
                return
            request.throttle_state.strategy = give
            request.throttle_state.waited = claimed
            if claimed or not self._wait_for_eta(request):
                self._pass_on(request)

        return admit_first

    def _wait_for_eta(self, request: Any) -> bool:
        """Let a request wait for its time as Celery does; return whether that is to come."""
        seconds = request.eta.timestamp() - time.time() if request.eta else 0.0
        if seconds <= 0:
            return False
        consumer = self._consumer
        consumer.qos.increment_eventually()
        request._eta_timer_entry = consumer.timer.call_after(  # noqa: SLF001  # as Celery does
            seconds, consumer.apply_eta_task, (request,), priority=6
        )
        if hasattr(state, "task_scheduled"):  # since Celery 5.7
            state.task_scheduled(request)
        return True

    def _pass_on(self, request: Any) -> None:
        if not request.revoked():
            _start(self._consumer, request)


def _start(consumer: Any, request: Any) -> None:
    """Hand a request to the pool, as Celery's strategy does."""
    state.task_reserved(request)
    for callback in consumer.on_task_message:
        callback(request)
    consumer.on_task_request(request)


def bypass_rate_limits(consumer: Any) -> None:
    """Let claimed tasks bypass the token buckets of Celery's own ``rate_limit``.

    Law at stake here: *never over*. Celery's strategy puts the request of a task with a
    ``rate_limit`` into a token bucket and starts it seconds later. The units of a claimed task are
    taken: it must start when its time comes. Every other task goes through the bucket first, and
    takes units at the gate when the bucket lets it go.

    It must be called before Celery makes its strategies, which look these methods up once. The
    buckets themselves may come and go at run time (``celery control rate_limit``).
    """

    def unless_claimed(limit: Callable[..., None], start: Callable[[Any], None]) -> Any:
        def limit_or_start(request: Any, *bucket: Any) -> None:
            if is_claimed(request.message):
                start(request)
            else:
                limit(request, *bucket)

        return limit_or_start

    limit, limit_post_eta = consumer._limit_task, consumer._limit_post_eta  # noqa: SLF001  # Celery has no other way in
    consumer._limit_task = unless_claimed(limit, partial(_start, consumer))  # noqa: SLF001  # as above
    # For a task that has an eta as well, when that has come.
    consumer._limit_post_eta = unless_claimed(limit_post_eta, consumer.apply_eta_task)  # noqa: SLF001  # as above
