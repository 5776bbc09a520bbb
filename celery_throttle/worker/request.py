"""The hook in Celery's request: the one point that every task passes when a process is free."""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery import Task
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name


class StoppedAtGateError(TaskRevokedError):
    """The task does not run now. Celery gives its process back, as for a revoked task."""


class GatedRequest:
    """Mixed into a request class: asks the gate before the pool sees the task.

    Celery subclasses a task's request class and overrides ``execute_using_pool`` there, so each
    subclass that has its own is wrapped.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inner = cls.__dict__.get("execute_using_pool")
        if inner is None:
            return

        @wraps(inner)
        def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
            if self.revoked():
                raise TaskRevokedError(self.id)
            gate = self.app.throttle.gate
            if gate is not None and not gate.admit(self):
                raise StoppedAtGateError(self.id)
            return inner(self, pool, **kwargs)

        cls.execute_using_pool = execute_using_pool  # type: ignore[attr-defined]  # of the subclass


class ThrottledRequest(GatedRequest, Request):
    """Celery's request with the gate."""


def install(task: Task) -> None:
    """Give a task with limits the gate, whatever its base class and request class are."""
    own = symbol_by_name(task.Request)
    if not issubclass(own, GatedRequest):
        gated = type("ThrottledRequest", (GatedRequest, own), {})
        type(task).Request = gated  # type: ignore[assignment]  # a class does as well as its name
