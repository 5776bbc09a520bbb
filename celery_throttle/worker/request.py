"""The hook in Celery's request: the one point that every task passes when a process is free."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]  # missing in the stubs
from celery import Task
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name

from celery_throttle.messages.packing import SENT_BACK
from celery_throttle.tasks.context import TaskThrottled
from celery_throttle.worker.admission import requested_limits
from celery_throttle.worker.admission.recovery import fail
from celery_throttle.worker.fan_out_outcomes import DONE, FAILED, OUTCOMES
from celery_throttle.worker.strategies import ReceivedBeforeError

if TYPE_CHECKING:
    from celery_throttle.worker.admission.gate import Gate


class StoppedAtGateError(TaskRevokedError):
    """The task does not run now. Celery gives its process back, as for a revoked task."""


class GatedRequest:
    """Mixed into a request class: asks the gate before the pool sees the task, and tells its end.

    Celery subclasses a task's request class and overrides ``execute_using_pool`` and ``on_success``
    there, so each subclass that has its own is wrapped. An app without a gate may have the class
    too, as a task's class may be registered with several apps: there it is Celery's request.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, wrapped in (("execute_using_pool", _gated), ("on_success", _then_ended)):
            if name in cls.__dict__:
                setattr(cls, name, wrapped(cls.__dict__[name]))

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)  # type: ignore[call-arg]  # mixed in
        # Taken out: the task sees the headers it was sent with.
        redelivered = self.request_dict.pop(SENT_BACK, None)  # type: ignore[attr-defined]  # see above
        if redelivered:
            self.delivery_info["redelivered"] = True  # type: ignore[attr-defined]  # see above
        if getattr(message, "received", False):
            raise ReceivedBeforeError(self)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """The task has failed, is to be retried or ended otherwise, or its process was lost."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):  # as a pool's process sends it
            error = error.exc
        gate = _gate_of(self)
        if isinstance(error, TaskThrottled) and gate is not None:
            state.task_ready(self)
            _ended(self)
            gate.meets(self, error.met)
            return None
        try:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]  # see above
        finally:
            if not self.__dict__.get("throttle_outcome"):
                self.throttle_outcome = _unsaid(error)
            _ended(self)

    def send_event(self, type: str, **fields: Any) -> Any:  # noqa: A002  # as in Celery
        """An event of Celery's, of which it sends one in every way in which a task ends."""
        if fields.get("requeue"):
            self.throttle_returns = True
        self.throttle_outcome = OUTCOMES.get(type, self.__dict__.get("throttle_outcome", ""))
        return super().send_event(type, **fields)  # type: ignore[misc]  # mixed in

    def _announce_revoked(self, *args: Any, **kwargs: Any) -> None:
        """It was revoked, or has expired."""
        super()._announce_revoked(*args, **kwargs)  # type: ignore[misc]  # mixed in
        _tell_end(self)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001  # as in Celery
        """A time limit has passed; it is the end of the task unless it is the soft one."""
        try:
            super().on_timeout(soft, timeout)  # type: ignore[misc]  # mixed in
        finally:
            if not soft:
                _ended(self)


def _unsaid(error: BaseException) -> str:
    """How a task ended that left its process by an error of which Celery sent no event."""
    if isinstance(error, Reject):  # what was acknowledged before cannot come again
        return FAILED
    return DONE if isinstance(error, Ignore) and not isinstance(error, Retry) else ""


def _gated(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        gate = _gate_of(self)
        if gate is None:
            return inner(self, pool, **kwargs)
        if self.revoked():
            _ended(self)  # it may have a slot already
            raise TaskRevokedError(self.id)
        if not gate.admit(self):
            raise StoppedAtGateError(self.id)
        try:
            requested_limits.give(self)
            return inner(self, pool, **kwargs)
        except Exception as error:
            _ended(self)
            if not hasattr(self.message, "claim"):
                raise
            # What came from a line came through a timer, which would log this and forget it: the
            # task would neither run nor end, and its process would never be free again.
            fail(self, error)
            raise StoppedAtGateError(self.id) from error
        except BaseException:
            _ended(self)
            raise

    return execute_using_pool


def _then_ended(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def on_success(self: Any, result: Any, **kwargs: Any) -> Any:
        failed, *_ = result
        if failed:  # it goes on to on_failure, after which the task may run once more
            return inner(self, result, **kwargs)
        try:
            return inner(self, result, **kwargs)
        finally:
            _ended(self)

    return on_success


def _gate_of(request: Any) -> Gate | None:
    """The gate of the worker; None if its app has no limits, or no worker runs."""
    throttle = getattr(request.app, "throttle", None)
    gate: Gate | None = None if throttle is None else throttle.gate
    return gate


def _ended(request: Any) -> None:
    """It has left its process."""
    gate = _gate_of(request)
    if gate is not None:
        gate.end(request)
        _tell_end(request)


def _tell_end(request: Any) -> None:
    """Tell how it ended, if it has ended for good."""
    gate = _gate_of(request)
    outcome = request.__dict__.pop("throttle_outcome", "")
    if gate is not None and outcome and "throttle_returns" not in request.__dict__:
        gate.outcomes.note(request.request_dict, outcome)


class ThrottledRequest(GatedRequest, Request):
    """Celery's request with the gate."""


def is_gated(task: Task) -> bool:
    """Whether a task has the gate."""
    return issubclass(symbol_by_name(task.Request), GatedRequest)


def install(task: Task) -> None:
    """Give a task the gate, whatever its base class and request class are.

    The task of this app alone: its class may be that of other apps' tasks as well.
    """
    own = symbol_by_name(task.Request)
    if not is_gated(task):
        gated = type("ThrottledRequest", (GatedRequest, own), {})
        task.Request = gated  # type: ignore[assignment]  # a class does as well as its name
