"""The limits of a Celery app: its settings, its limits, and those of its tasks and queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from math import inf
from typing import Any, cast

from celery import Celery, Task, _state
from celery.utils.log import get_logger

from celery_throttle.errors import (
    ConfigurationError,
    LimitFunctionError,
    RulesError,
    StoreError,
    ThrottleError,
    function_name,
)
from celery_throttle.limiter.backend import Backend, disabled_backend, make_backend
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limiter.parts import MakePart, Parts, backend_of_parts
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef, ref_text
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import LimitByKey, Requirement
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import note_change, put_looked_up
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.rules import Applied, FileRules
from celery_throttle.store.keys import Keys
from celery_throttle.store.url import is_memory_url
from celery_throttle.tasks.app_rules import AppRules, Declared
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.broker import broker_identity
from celery_throttle.tasks.settings import Settings
from celery_throttle.tasks.step_out import SwallowedWaits
from celery_throttle.tasks.task_limits import TaskLimits

logger = get_logger(__name__)

#: A state that says nothing: the result backend stores no state of a task that waits.
_NO_STATE = "PENDING"

#: For how long the server keeps what was looked up for a key: the longer of seconds and intervals.
_KEPT_SECONDS, _KEPT_INTERVALS = 86_400.0, 10

#: Keys that a process remembers as looked up.
_MAX_LOOKED_UP = 10_000


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
        self.given = given
        self._declared: Declared | None = None
        self._looked_up: dict[LimitRef, float] = {}

    @cached_property
    def settings(self) -> Settings:
        """The settings in force, read at first use."""
        return Settings(self.app.conf, self.given)

    @cached_property
    def rules_file(self) -> AppRules | None:
        """The rules file; None if the app has none."""
        path, code = self.settings.rules, None
        with suppress(ThrottleError):  # check() reports it, and so does each task with a limit
            code = self.code_limits
        return None if path is None else AppRules(path, code, self.check_rules)

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

    def check_rules(self, rules: Rules, path: str) -> None:
        """Raise RulesError for rules with which tasks fail that do not fail now.

        ``path``: the file of the rules, for messages.

        :meta private:
        """
        old = self._declared or Declared(self.settings, None)
        new, found = Declared(self.settings, rules), []
        tasks = sorted(self.app._tasks.items())  # type: ignore[attr-defined]  # noqa: SLF001  # app.tasks would finalize the app
        for _, task in tasks:
            error = new.error_of(task)
            if error is not None and old.error_of(task) is None:
                found.append(str(error))
        if found:
            raise RulesError(path, [(None, text) for text in found])

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
        # A server may have lost what the rules file defines: ``restore``.
        if settings.shards.entries:
            make = MakePart(
                *(settings.url, limits, settings.prefix, settings.timeout),
                new=lambda _: AppPart(self),
                restore=lambda parts, shard: self._apply_rules_file(
                    partial(parts.apply_rules, shard)
                ),
            )
            backend = backend_of_parts(Parts(settings.shards, make))
        else:
            backend = make_backend(
                *(settings.url, limits, self.keys),
                timeout=settings.timeout,
                restore=lambda: self._apply_rules_file(self.plans.apply_rules),
            )
        if is_memory_url(settings.url):
            self.run_plan(self._apply_rules_file(backend.plans.apply_rules))
        return backend

    def _apply_rules_file(self, apply: Callable[[FileRules], Plan[Applied]]) -> Plan[None]:
        if self.rules_file is not None:
            self.rules_file.in_use()  # reads it, unless a thread of the worker does
            if self.rules_file.of_file is not None:
                with suppress(RulesError):  # the worker logs it
                    yield from apply(self.rules_file.of_file)

    @property
    def app_parts(self) -> list[AppLimits]:
        """The part of each shard, that of the home shard first; without shards this."""
        return [*self.parts_by_name.values()]

    @property
    def parts_by_name(self) -> Mapping[str, AppLimits]:
        """The part of each shard, by the name of the shard; without shards this, by ""."""
        if self.parts is None:
            return {"": self}
        return {str(shard): cast("AppLimits", self.parts[shard]) for shard in self.parts.shards}

    def parts_with(self, ref: LimitRef | None) -> list[AppLimits]:
        """Return the parts of the shards that have a limit, or a key of it; None: all parts.

        Raises:
            StoreError: the home shard cannot be reached, which knows that.
        """
        if self.parts is None or ref is None:
            return self.app_parts
        self.run_plan(self.parts.locate(ref.name))
        return cast("list[AppLimits]", self.parts.find_all(ref))

    def look_up_key(self, ref: LimitRef, written: LimitByKey) -> None:
        """Put in force what the function of a limit gives to a key. It may block.

        Raises:
            LimitFunctionError: the function failed.
            LimitError: the key would switch between a rate and slots.
        """
        limits = written.look_up(ref)
        author = Author.of(None, f"looked up by {function_name(written.function)}")
        lasts = max(_KEPT_SECONDS, _KEPT_INTERVALS * written.refresh_seconds)
        self.run_in_shard(
            [ref], lambda shard: put_looked_up(shard, ref, limits, to_us(lasts), author)
        )

    def look_up_keys(self, refs: Iterable[LimitRef]) -> None:
        """Look up keys that this process uses, each now and then. It may block.

        If the function of a key fails later, the limit that it gave before stays in force.

        Raises:
            LimitFunctionError: a function failed.
        """
        for ref in self._unknown_keys(refs):
            is_known = ref in self._looked_up
            try:
                self.look_up_key(ref, self.limits_by_key[ref.name])
            except LimitFunctionError as error:
                if not is_known:
                    raise
                logger.warning("The limit of %s stays as it is: %s", ref_text(ref), error)
            if len(self._looked_up) >= _MAX_LOOKED_UP:
                self._looked_up.clear()
            self._looked_up[ref] = time.monotonic()

    @cached_property
    def limits_by_key(self) -> Mapping[str, LimitByKey]:
        """See :attr:`Settings.limits_by_key`; read for each call."""
        return self.settings.limits_by_key

    def _unknown_keys(self, refs: Iterable[LimitRef]) -> list[LimitRef]:
        """Return the keys that are to be looked up: they are new, or it is time."""
        by_name = self.limits_by_key
        if not by_name or not self.settings.has_lines:
            return []
        now, known = time.monotonic(), self._looked_up
        return [
            ref
            for ref in refs
            if ref.key is not None
            and ref.name in by_name
            and now - known.get(ref, -inf) > by_name[ref.name].refresh_seconds
        ]

    def preparation(self, requirement: Requirement) -> Callable[[], None] | None:
        """Return what looks keys up that are new, or that it is time for; None if there are none.

        So calls outside of tasks, and in their bodies, have the limits of their keys.
        """
        refs = requirement.refs
        return partial(self.look_up_keys, refs) if self._unknown_keys(refs) else None

    @cached_property
    def keys(self) -> Keys:  # type: ignore[override]  # read at first use
        """Names of keys in Redis."""
        return Keys(self.settings.prefix)

    @cached_property
    def own_broker(self) -> str:  # read at first use
        """The broker that workers consume from, as the names of its queues begin."""
        with self.app.connection_for_read() as connection:
            return f"{broker_identity(connection)}/"

    def qualify(self, queue: str) -> str:
        """Return the name of a queue with that of its broker, as lines are named."""
        return f"{self.own_broker}{queue}"

    def task_name(self, packed: bytes) -> str | None:
        """Return the name of the task of a message in a line; None if it cannot be read."""
        name = _read_headers(packed).get("task")
        return name if isinstance(name, str) else None

    def task_arguments(self, packed: bytes) -> tuple[str, ...]:
        """Return the texts of the arguments in a message, as its sender shortened them."""
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

    @cached_property
    def swallowed(self) -> SwallowedWaits:
        """Warns of tasks that catch the error with which they should step out."""
        return SwallowedWaits(self.app, self.app_parts[0])

    def bind_task(self, task: type[Task]) -> None:
        """Forget the limits of a task that is defined, or defined anew."""
        if self._declared is not None:
            self._declared.tasks.pop(str(task.name), None)

    def task_limits(self, task: Task) -> TaskLimits | None:
        """Return the limits of a task of the app, or None. They are read once for each rules file.

        Raises:
            ThrottleError: the limits are wrong, or a setting is.
        """
        name, declared = str(task.name), self.declared
        if name not in declared.tasks:
            try:
                declared.tasks[name] = self._check_kept(name, declared.read(task))
            except ThrottleError as error:
                declared.tasks[name] = error
        limits = declared.tasks[name]
        if isinstance(limits, ThrottleError):
            raise limits.with_traceback(None)
        return limits

    def _check_kept(self, task: str, limits: TaskLimits | None) -> TaskLimits | None:
        if limits is not None and limits.kept and self.settings.waiting == "broker":
            raise ConfigurationError(
                f"task {task!r}: throttle_keep_waiting is {limits.kept.name.lower()!r}, which "
                "needs lines, but throttle_waiting is 'broker'; allowed with it: 'all'"
            )
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

    def limits_together(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the tasks of the app, and the names of the limits that each needs in one call."""
        for name, task in sorted(self.app.tasks.items()):
            with suppress(ThrottleError):  # such a task fails
                limits = self.task_limits(task)
                if limits is not None:
                    yield f"task {name!r}", frozenset(limits.names)


class AppPart(AppLimits):
    """The limits of an app as they are decided in one of its shards.

    :class:`~celery_throttle.limiter.parts.MakePart` gives it its keys and its server.

    Args:
        whole: the limits of the app.

    :meta private:
    """

    def __init__(self, whole: AppLimits) -> None:
        super().__init__(whole.app, {})
        self._whole = whole
        self.settings, self.rules_file = whole.settings, whole.rules_file

    @property
    def declared(self) -> Declared:
        """The limits and routes of the app, in all shards."""
        return self._whole.declared

    @property
    def own_broker(self) -> str:
        """The broker that workers consume from."""
        return self._whole.own_broker


def _read_headers(packed: bytes) -> Mapping[str, Any]:
    """Return the headers of a message in a line; none if it cannot be read."""
    try:
        return packing.headers(packed)
    except packing.UnreadableMessageError:
        return {}


def active_throttles() -> list[AppLimits]:
    """Return the limits of all apps of this process that have any."""
    apps: Any = _state._get_active_apps()  # type: ignore[attr-defined]  # noqa: SLF001  # Celery's own list
    return [app.throttle for app in apps if getattr(app, "throttle", None) is not None]
