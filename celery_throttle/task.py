"""What a task says of its limits, and the base class on which it says so."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from celery import Task

from celery_throttle.errors import ConfigurationError, LimitError, UnknownLimitError, shown
from celery_throttle.limits import Limit
from celery_throttle.plans import check_cost, check_wait, unknown_limit
from celery_throttle.scope import ArgumentReader, LimitRef, Scope
from celery_throttle.settings import Spec


class ThrottledTask(Task):
    """Base of tasks with limits; ``Throttle(app)`` makes it the app's default base.

    Attributes:
        throttle: the limits: ``"stripe"``, ``"mail:{tenant_id}"`` (the key is taken from the
            task's arguments) or a list of such. None: the app's ``throttle_routes`` decide.
        throttle_cost: units the task takes from each of its limits. Default 1.
        throttle_max_wait: seconds; a task that would have to wait longer does not join its line.
            None (the default): any wait.
        throttle_on_max_wait: ``"fail"`` (the default): it fails at once with
            :class:`~celery_throttle.errors.WaitTooLongError`; ``"drop"``: it is discarded, and
            its state becomes REVOKED.
        throttle_track: whether a waiting task shows the state THROTTLED in the result backend,
            with ``limit``, ``key``, ``position`` and ``expected`` (seconds). Default False.
    """

    abstract = True
    Request = "celery_throttle.worker.request:ThrottledRequest"

    throttle: Spec | None = None
    throttle_cost: int = 1
    throttle_max_wait: float | None = None
    throttle_on_max_wait: Literal["fail", "drop"] = "fail"
    throttle_track: bool = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check what the task says of its limits while it is being defined."""
        super().on_bound(app)
        if cls.throttle is None:
            return
        if not hasattr(app, "throttle"):
            raise ConfigurationError(
                f"task {cls.name!r} has limits, but its app has none: make a Throttle(app) first"
            )
        app.throttle.bind_task(cls)


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """What a task says of its limits, read and checked.

    ``fixed`` are the limits and keys of every call, if no key comes from its arguments.
    """

    scopes: tuple[Scope, ...]
    reader: ArgumentReader
    fixed: tuple[LimitRef, ...] | None
    cost: int
    max_wait: float | None
    drop: bool
    track: bool

    def refs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[LimitRef, ...]:
        """The limits and keys that one call of the task needs.

        Raises:
            KeyValueError: an argument's value cannot be a key.
        """
        values = self.reader.read(args, kwargs)
        refs, used = [], 0
        for scope in self.scopes:
            count = len(scope.arguments)
            refs.append(scope.ref(values[used : used + count]))
            used += count
        return tuple(refs)

    def refs_of(self, request: Any) -> tuple[LimitRef, ...]:
        """:meth:`refs` for the arguments of a request, found once."""
        refs: tuple[LimitRef, ...] | None = self.fixed or request.__dict__.get("throttle_refs")
        if refs is None:
            refs = request.throttle_refs = self.refs(request.args, request.kwargs)
        return refs

    @classmethod
    def read(cls, task: type[Task] | Task, spec: Spec, known: Mapping[str, Limit]) -> TaskLimits:
        """Read the attributes of a task.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: they name the task and the text.
        """
        where = f"task {task.name!r}"
        scopes = read_scopes(spec, known, where)
        names = [name for scope in scopes for name in scope.arguments]
        reader = ArgumentReader.for_signature(_signature(task), names, where)
        max_wait = getattr(task, "throttle_max_wait", None)
        with _named(where):
            cost = check_cost(getattr(task, "throttle_cost", 1))
            for scope in scopes:
                known[scope.name].check_cost(cost, scope.name)
            if max_wait is not None:
                check_wait(max_wait, "throttle_max_wait")
        after = getattr(task, "throttle_on_max_wait", "fail")
        if after not in ("fail", "drop"):
            raise ConfigurationError(
                f"{where}: throttle_on_max_wait is {shown(after)}: it must be 'fail' or 'drop'"
            )
        return cls(
            scopes=scopes,
            reader=reader,
            fixed=None if names else tuple(scope.ref() for scope in scopes),
            cost=cost,
            max_wait=max_wait,
            drop=after == "drop",
            track=bool(getattr(task, "throttle_track", False)),
        )


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Says of an error where it was made."""
    try:
        yield
    except (LimitError, UnknownLimitError) as error:
        raise type(error)(f"{where}: {error}") from error


def read_scopes(spec: Spec, known: Mapping[str, Limit], where: str) -> tuple[Scope, ...]:
    """The limits that a task or a route names.

    Raises:
        UnknownLimitError, LimitError, ConfigurationError: they name ``where`` and the text.
    """
    if not isinstance(spec, (str, list, tuple)):
        raise ConfigurationError(
            f"{where}: limits {shown(spec)} cannot be read: give a name or a list of names"
        )
    texts = [spec] if isinstance(spec, str) else list(spec)
    with _named(where):
        scopes = tuple(Scope.parse(text) for text in texts)
        if not scopes:
            raise LimitError(f"{shown(spec)} names no limit: give a name, a list of names or None")
        if len(set(texts)) != len(texts):
            raise LimitError(f"{shown(spec)} names the same limit twice")
        for scope in scopes:
            if scope.name not in known:
                raise unknown_limit(scope.name, known)
    return scopes


def _signature(task: type[Task] | Task) -> inspect.Signature:
    cls = task if isinstance(task, type) else type(task)
    run = inspect.getattr_static(cls, "run")
    signature = inspect.signature(cls.run)
    if isinstance(run, staticmethod):
        return signature
    bound_to_self = list(signature.parameters.values())[1:]
    return signature.replace(parameters=bound_to_self)
