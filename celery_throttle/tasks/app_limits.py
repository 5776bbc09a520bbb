"""The limits of a Celery app: its settings, its limits, and those of its tasks and queues."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from celery import Celery, Task, _state

from celery_throttle.errors import ConfigurationError, RulesError, StoreError, ThrottleError
from celery_throttle.limiter.backend import Backend, Plans, disabled_backend, make_backend
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.observe.status.stored import begin_once
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import note_change
from celery_throttle.operations.memory import MemoryPlans
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys
from celery_throttle.store.url import is_memory_url
from celery_throttle.tasks.app_rules import AppRules
from celery_throttle.tasks.declared import Declared
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.broker import broker_identity
from celery_throttle.tasks.settings import Settings, Spec
from celery_throttle.tasks.step_out import SwallowedWaits
from celery_throttle.tasks.task_limits import TaskLimits, read_templates

#: A state that says nothing: the result backend stores no state of a task that waits.
_NO_STATE = "PENDING"

#: Time between two warnings of one kind about tasks of one name, by whichever process.
_WARNING_SECONDS = 86_400.0


class AppLimits(Limiter):
    """The limits of a Celery app, as its tasks, fan-outs and workers use them.

    Args:
        app: the app.
        given: settings that are not read from ``app.conf``, by name; None for those that are.

    :meta private:
    """

    def __init__(self, app: Celery, given: Mapping[str, Any]) -> None:
        self.app = app
        self.clock = None
        self._given = given
        self._declared: Declared | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings in force, read at first use."""
        return Settings(self.app.conf, self._given)

    @cached_property
    def rules_file(self) -> AppRules | None:
        """The rules file; None if the app has none."""
        path, code = self.settings.rules, None
        if path is None:
            return None
        with suppress(ThrottleError):  # check() reports it, and so does each task with a limit
            code = self.code_limits
        return AppRules(path, code, self._check_rules)

    @property
    def declared(self) -> Declared:
        """The limits and routes of the code, with the rules that are in use."""
        rules = None if self.rules_file is None else self.rules_file.in_use()
        declared = self._declared
        if declared is None or declared.rules is not rules:
            declared = self._declared = Declared(self.settings, rules)
        return declared

    @property
    def lacks_rules(self) -> bool:
        """Whether the rules file could not be read so far: it may define any limit."""
        return self.rules_file is not None and self.declared.rules is None

    def _check_rules(self, rules: Rules) -> None:
        """Raise RulesError for rules with which tasks fail that do not fail now."""
        old = self._declared or Declared(self.settings, None)
        new, found = Declared(self.settings, rules), []
        tasks = sorted(self.app._tasks.items())  # type: ignore[attr-defined]  # noqa: SLF001  # app.tasks would finalize the app
        for _, task in tasks:
            error = _find_error(task, new)
            if error is not None and _find_error(task, old) is None:
                found.append(str(error))
        if found:
            raise RulesError(str(self.settings.rules), [(None, text) for text in found])

    @property
    def limits(self) -> Mapping[str, Limits]:  # type: ignore[override]  # read when they are used
        """The limits of the code and of the rules file, by name."""
        return self.declared.limits

    @property
    def code_limits(self) -> Mapping[str, Limits]:
        """The limits of the code, without those of the rules file."""
        return self.settings.limits

    @cached_property
    def backend(self) -> Backend:  # type: ignore[override]  # read at first use
        """Where the limits are decided."""
        limits, settings = self.code_limits, self.settings
        if not settings.enabled:
            return disabled_backend(limits, self.keys, "throttle_enabled is False")
        backend = make_backend(
            settings.url, limits, self.keys, timeout=settings.timeout, restore=self._restore_rules
        )
        if is_memory_url(settings.url):
            self.run_plan(self._apply_rules_file(backend.plans))
        return backend

    def _restore_rules(self) -> Plan[None]:
        """Put the rules file in force on a server that may have lost it."""
        yield from self._apply_rules_file(self.plans)

    def _apply_rules_file(self, plans: Plans | MemoryPlans) -> Plan[None]:
        if self.rules_file is not None:
            self.rules_file.in_use()  # reads it, unless a thread of the worker does
            if self.rules_file.of_file is not None:
                with suppress(RulesError):  # the worker logs it
                    yield from plans.apply_rules(self.rules_file.of_file)

    @cached_property
    def keys(self) -> Keys:  # type: ignore[override]  # read at first use
        """Names of keys in Redis."""
        return Keys(self.settings.prefix)

    @cached_property
    def _broker(self) -> str:
        """Identity of the broker that workers consume from: tasks in lines run there."""
        with self.app.connection_for_read() as connection:
            return broker_identity(connection)

    @property
    def own_broker(self) -> str:
        """The broker of the app's queues, as the names of queues begin."""
        return self.qualify("")

    def task_name(self, packed: bytes) -> str | None:
        """Return the name of the task of a message in a line; None if it cannot be read."""
        name = _read_headers(packed).get("task")
        return name if isinstance(name, str) else None

    def task_arguments(self, packed: bytes) -> tuple[str, ...]:
        """Return the texts of the arguments of a message in a line, as its sender shortened them.

        They are those that Celery's events have. None if the message has none.
        """
        headers = _read_headers(packed)
        texts = (headers.get("argsrepr"), headers.get("kwargsrepr"))
        return tuple(text for text in texts if isinstance(text, str))

    def stored_state(self, task_id: str) -> str | None:
        """Return the state of a task in the result backend of the app; None if it has none."""
        try:
            state: str = self.app.AsyncResult(task_id).state
        except Exception:  # noqa: BLE001  # each backend has errors of its own, and may be missing
            return None
        return None if state == _NO_STATE else state

    def note_removal(self, action: str, subject: str, what: str, author: Author) -> None:
        """Note in the log of changes that waiting tasks were removed, if the server can be reached.

        They are removed, whether or not that is noted. ``subject``: see ``plans.note_change``.
        """
        with suppress(StoreError):
            self.run_plan(note_change(self.plans, action, subject, what, author))

    def qualify(self, queue: str) -> str:
        """Return the name of a queue with that of its broker, as lines are named."""
        return f"{self._broker}/{queue}"

    @cached_property
    def swallowed(self) -> SwallowedWaits:
        """Warns of tasks that catch the error with which they should step out."""
        return SwallowedWaits(self.app, self._begin_warning)

    def _begin_warning(self, task_name: str) -> bool:
        """Return whether no process has warned of a task today, as far as the server can tell."""
        plan = begin_once(self.observer, f"swallowed {task_name}", _WARNING_SECONDS)
        try:
            return self.run_plan(plan)
        except StoreError:
            return True

    def bind_task(self, task: type[Task]) -> None:
        """Forget the limits of a task that is defined, or defined anew."""
        if self._declared is not None:
            self._declared.tasks.pop(str(task.name), None)

    def knows(self, task: type[Task] | Task) -> bool:
        """Return whether the app has the limits that a task names."""
        try:
            return self.read_task(task) is not None
        except ThrottleError:
            return False

    def task_limits(self, task: Task) -> TaskLimits | None:
        """Return the limits of a task of the app, or None. They are read once for each rules file.

        Raises:
            ThrottleError: the limits are wrong, or a setting is.
        """
        name, declared = str(task.name), self.declared
        if name not in declared.tasks:
            try:
                declared.tasks[name] = _read_task(task, declared)
            except ThrottleError as error:
                declared.tasks[name] = error
        limits = declared.tasks[name]
        if isinstance(limits, ThrottleError):
            raise limits.with_traceback(None)
        return limits

    def limits_with_keys(self) -> set[str]:
        """Return the names of the limits of which tasks of the app need keys."""
        names: set[str] = set()
        for task in list(self.app.tasks.values()):
            with suppress(ThrottleError):  # such a task fails
                limits = self.task_limits(task)
                templates = () if limits is None else limits.templates
                names.update(template.name for template in templates if template.parts)
        return names

    def read_task(
        self, task: type[Task] | Task, known: Mapping[str, Limits] | None = None
    ) -> TaskLimits | None:
        """Read and check the limits of a task: its own, or those of the route for its name.

        ``known`` are the limits that exist; those of the code and the rules file by default.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: the limits are wrong.
        """
        return _read_task(task, self.declared, known)

    def spec_of(self, task: type[Task] | Task) -> Spec | None:
        """Return the limits of a task as written: its own, or those of its route."""
        return _spec_of(task, self.declared)

    def check_routes(self) -> None:
        """Check that the routes name limits that exist.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: a route is wrong.
        """
        for pattern, spec in self.settings.routes.items():
            read_templates(spec, self.limits, f"throttle_routes[{pattern!r}]")


def _read_task(
    task: type[Task] | Task, declared: Declared, known: Mapping[str, Limits] | None = None
) -> TaskLimits | None:
    spec = _spec_of(task, declared)
    if spec is None:
        return None
    return TaskLimits.read(task, spec, declared.limits if known is None else known)


def _read_headers(packed: bytes) -> Mapping[str, Any]:
    """Return the headers of a message in a line; none if it cannot be read."""
    try:
        return packing.headers(packed)
    except packing.UnreadableMessageError:
        return {}


def _find_error(task: Task, declared: Declared) -> ThrottleError | None:
    try:
        _read_task(task, declared)
    except ThrottleError as error:
        return error
    return None


def _spec_of(task: type[Task] | Task, declared: Declared) -> Spec | None:
    spec: Spec | None = getattr(task, "throttle", None)
    if spec is not None:
        return spec
    try:
        return declared.route(str(task.name))
    except ConfigurationError:  # a worker does not start then, and check() reports it
        return None


def active_throttles() -> list[AppLimits]:
    """Return the limits of all apps of this process that have any."""
    apps: Any = _state._get_active_apps()  # type: ignore[attr-defined]  # noqa: SLF001  # Celery's own list
    return [app.throttle for app in apps if getattr(app, "throttle", None) is not None]
