"""The hook in Celery's request: the one point that every task passes when a process is free.

A task with a strategy of its own passes it before the strategy gets the message, see
``hooks/strategies.py``. Whatever requests the strategy makes of the message were admitted then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]  # missing in the stubs
from celery import Task
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name

from celery_throttle.errors import ConfigurationError
from celery_throttle.operations.fan_outs import DONE, FAILED
from celery_throttle.tasks.messages.packing import REPUBLISHED_HEADER
from celery_throttle.tasks.messages.publishing import remove_broker_headers
from celery_throttle.tasks.step_out import TaskThrottled
from celery_throttle.tasks.task import limits_to_send
from celery_throttle.worker.admission.gates import gate_of
from celery_throttle.worker.admission.request_limits import pass_units
from celery_throttle.worker.claims.outcomes import OUTCOMES
from celery_throttle.worker.hooks.announcements import note_new, restart_fields, send_receipt
from celery_throttle.worker.hooks.strategies import ReceivedBeforeError
from celery_throttle.worker.task_state import Status, TaskState, fail


class StoppedAtGateError(TaskRevokedError):
    """The task does not run now. Celery releases its process, as for a revoked task."""


class GatedRequest:
    """Mixed into a request class: asks the gate before the pool gets a task, and records its end.

    Celery subclasses a task's request class and overrides ``execute_using_pool`` and ``on_success``
    there, so each subclass that has its own is wrapped. An app without a gate may have this class
    too, as a task's class may be registered with several apps. There it runs the tasks; but it
    fails one that has limits if no app of the process has them.
    """

    throttle_state: TaskState

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, wrapped in (("execute_using_pool", _gated), ("on_success", _with_end)):
            if name in cls.__dict__:
                setattr(cls, name, wrapped(cls.__dict__[name]))

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)  # type: ignore[call-arg]  # mixed in
        headers = self.request_dict  # type: ignore[attr-defined]  # see above
        # Taken out: the task sees the headers it was sent with, and a retry is sent with them.
        if REPUBLISHED_HEADER in headers:
            remove_broker_headers(headers)
            if headers.pop(REPUBLISHED_HEADER):
                self.delivery_info["redelivered"] = True  # type: ignore[attr-defined]  # see above
        self.throttle_state = TaskState(self)
        admitted = getattr(message, "admitted_request", None)
        if admitted is not None and admitted.throttle_state.status is Status.IN_STRATEGY:
            self.throttle_state = admitted.throttle_state
        elif getattr(message, "received", False):
            # Celery's strategy would announce the task as received a second time. Ours catches the
            # error, see `hooks/strategies.py`, and goes on with the request.
            self.throttle_state.waited = True
            raise ReceivedBeforeError(self)
        note_new(self)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a task that failed, is retried, ended in another way, or lost its process."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):  # as a pool's process sends it
            error = error.exc
        gate = gate_of(self)
        is_running = self.throttle_state.status is Status.RUNNING
        if isinstance(error, TaskThrottled) and gate is not None and is_running:
            gate.step_out(self, error.requested)
            return None
        try:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]  # see above
        finally:
            task = self.throttle_state
            task.outcome = task.outcome or _outcome_without_event(error)
            _end(self)

    def send_event(self, type: str, **fields: Any) -> Any:  # noqa: A002  # as in Celery
        """Send an event, and note the outcome: Celery calls this in every way that a task ends.

        Only a success is not announced by a worker without events.
        """
        task = self.throttle_state
        if type == "task-started" and task.waited:
            fields |= restart_fields(self)
        outcome = OUTCOMES.get(type)
        if outcome is not None:
            task.outcome = outcome
            task.comes_again = task.comes_again or bool(fields.get("requeue"))
        if type == "task-revoked":  # it may never come to the gate
            _report_outcome(self)
        if task.receipt is not None:  # the task ends before it starts
            send_receipt(self, waits=True)
        return super().send_event(type, **fields)  # type: ignore[misc]  # mixed in

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # as in Celery
        """Handle a time limit that has passed; the hard one ends the task."""
        try:
            super().on_timeout(soft, timeout)  # type: ignore[misc]  # mixed in
        finally:
            if not soft:
                _end(self)


def _outcome_without_event(error: BaseException) -> str:
    """Return the outcome of a task whose error made Celery send no event."""
    if isinstance(error, Reject):  # a message that was acknowledged before cannot come again
        return FAILED
    return DONE if isinstance(error, Ignore) and not isinstance(error, Retry) else ""


def _gated(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        gate = gate_of(self)
        if gate is None:
            _check_app(self)
            return inner(self, pool, **kwargs)
        task = self.throttle_state
        in_strategy = task.status is Status.IN_STRATEGY
        if in_strategy:
            gate.slots.move(self.message.admitted_request, self)
        if gate.is_revoked(self):  # its end releases the slot that it may have already
            raise TaskRevokedError(self.id)
        if not in_strategy and gate.admit(self) is not Status.ADMITTED:
            raise StoppedAtGateError(self.id)
        if task.strategy is not None:
            gate.pool.lend(partial(_give_to_strategy, self, task.strategy))
            return None
        try:
            task.move(Status.RUNNING)
            pass_units(self)
            if task.receipt is not None:
                send_receipt(self, waits=False)
            return inner(self, pool, **kwargs)
        except BaseException as error:
            _end(self)
            if task.claim is None or not isinstance(error, Exception):
                raise
            # A claimed task comes through a timer, which would log this and forget it: the task
            # would neither run nor end, and its process would never be free again.
            fail(self, error)
            raise StoppedAtGateError(self.id) from error

    return execute_using_pool


def _check_app(request: Any) -> None:
    """Fail a task that has limits, if its app has none and nor has another app of the process."""
    if getattr(request.app, "throttle", None) is None:
        try:
            limits_to_send(request.app, request.task)
        except ConfigurationError as error:
            fail(request, error)
            raise StoppedAtGateError(request.id) from error


def _give_to_strategy(request: Any, strategy: Callable[[Any, Any], None]) -> None:
    """Give the message of an admitted request to the task's own strategy.

    The strategy may make another request, which passes the gate as it is admitted, or do without.
    Then the acknowledgement of the message is all that this worker sees of the task's end.
    """
    task, gate = request.throttle_state, gate_of(request)
    task.move(Status.IN_STRATEGY)
    task.strategy = None
    state.task_ready(request)
    request.message.admitted_request = request

    def end(outcome: str) -> None:
        if task.status is not Status.IN_STRATEGY or gate is None:
            return
        if not task.outcome:  # else it was revoked
            task.outcome = outcome
            early = gate.slots.holds(request) and not request.task.acks_late
            gate.report_ungated(str(request.task.name), releases_early=early)
        gate.end(request)

    def acknowledge(*args: Any, **options: Any) -> None:
        request.on_ack(*args, **options)
        end(DONE)

    def reject(log: Any, errors: Any, requeue: bool = False) -> None:  # noqa: FBT001, FBT002  # as in kombu
        request.on_reject(log, errors, requeue)
        end("" if requeue else FAILED)

    try:
        strategy(acknowledge, reject)
    except Exception as error:
        if task.status is not Status.IN_STRATEGY:
            raise
        _end(request)
        fail(request, error)


def _with_end(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def on_success(self: Any, result: Any, **kwargs: Any) -> Any:
        if result[0]:  # the error goes on to on_failure, after which the task may run once more
            return inner(self, result, **kwargs)
        try:
            returned = inner(self, result, **kwargs)
            # A worker without events sends none for a success.
            self.throttle_state.outcome = self.throttle_state.outcome or DONE
        finally:
            _end(self)
        return returned

    return on_success


def _end(request: Any) -> None:
    """Record that a task has left its process."""
    gate = gate_of(request)
    if gate is not None:
        gate.end(request)


def _report_outcome(request: Any) -> None:
    gate = gate_of(request)
    if gate is not None:
        gate.report_outcome(request)


class ThrottledRequest(GatedRequest, Request):
    """Celery's request with the gate."""


def install(task: Task) -> bool:
    """Let the requests of a task pass the gate; return whether they did not before.

    The task may have any base class and any request class. Its class stays as it is, since tasks of
    other apps may have the same class.
    """
    own = symbol_by_name(task.Request)
    if issubclass(own, GatedRequest):
        return False
    gated = type("ThrottledRequest", (GatedRequest, own), {})
    task.Request = gated  # type: ignore[assignment]  # Celery takes a class or its name
    return True
