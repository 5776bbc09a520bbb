"""``Throttle(app)``: the limits of a Celery app."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from kombu.utils.imports import symbol_by_name

from celery_throttle.bulk.removal import remove
from celery_throttle.bulk.removal.counts import Removal, WaitingCount, count_waiting
from celery_throttle.bulk.removal.handle import ThrottleHandle
from celery_throttle.bulk.removal.remove import ReportProgress
from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.limits.key import ItemLike
from celery_throttle.limits.requirement import CodeLimits, parse_definitions
from celery_throttle.operations.author import Author
from celery_throttle.tasks import validation
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import Run, current_run, current_task, declare_units_field
from celery_throttle.tasks.settings import RouteSpec, check_lease
from celery_throttle.tasks.task import CheckedSend, ThrottledTask
from celery_throttle.tasks.task_limits import read_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery.canvas import Signature

    from celery_throttle.bulk.capture import LinePublisher
    from celery_throttle.bulk.fan_out import FanOut


class Throttle(AppLimits):
    """The limits of a Celery app. The workers of the app enforce them.

    A ``Throttle`` is a :class:`Limiter` with the settings of the app, and has all methods of a
    limiter. It connects to the server when it is first used. The constructor sets ``app.throttle``.

    Every argument except for ``app`` has a setting of the same name in ``app.conf``
    (``throttle_limits``, ``throttle_url``, ...), which is read at first use. An argument overrides
    the setting.

    Args:
        app: The app. An app has one ``Throttle``. Create it before you send tasks.
        limits: The limits of the code, by name; see :class:`Limiter`. Or a :class:`LimitByKey`.
            Default: none.
        routes: The limits of tasks by task name, or by a pattern with ``*``, in the form of the
            task attribute ``throttle``, or as a dict of ``limits`` and ``cost``. They apply to
            tasks without that attribute. Default: none.
        enabled: False allows every task and request, and calls no server. Default True.
        url: The URL of the server; see :class:`Limiter`. Default: the environment variable
            ``THROTTLE_URL``, or the broker, if that is Redis or Valkey.
        prefix: The prefix of all keys in Redis; default ``"{throttle}"``.
        lease: Seconds after which the claims and slots of a lost worker are free again, 1 to 3600;
            default 30.
        max_wait_in_place: Seconds for which a call within a task waits in its process, if the task
            has sent requests already, 0 to 86,400; default 60.
        timeout: Seconds to connect, and to wait for each reply, 0.01 to 60; default 1.
        checks: What happens if the server fails a check at the start of a worker: ``"warn"`` (the
            default), ``"error"`` (the worker does not start) or ``"off"`` (no checks).
        waiting: Where tasks wait: in their ``"line"`` (the default), or at the ``"broker"``.
        publish: Where to send tasks with limits: to the ``"broker"`` (the default), or to the end
            of their ``"line"`` if tasks already wait at one of their limits.
        replicas: The number of replicas that must confirm a parked task; default 0.
        outage_workers: The number of workers that a worker assumes if it starts in an outage.
            Default: none.
        outage_grace: Seconds, 0 to 3600, for which a worker starts no task with limits if it starts
            in an outage and does not know the number of workers; default 30.
        rules: The path of a rules file, which workers watch. Default: none.
        shards: The shards by name, to which limits are assigned, each with keys of its own, on
            another node of a cluster or another server; see :class:`Limiter` and
            :doc:`/how-to/shards`. Default: all limits are in one shard. All limits of a task are in
            one shard.

    Raises:
        LimitError: A definition in ``limits`` is wrong.
        ConfigurationError: ``app`` is not a Celery app, or has a ``Throttle`` already, or ``lease``
            or ``routes`` is wrong. Other mistakes in settings raise this error at their first
            use, in :meth:`check`, and when a worker starts.
        UnknownLimitError: A route names a limit that is not in ``limits``.

    Example:
        >>> from celery import Celery
        >>> app = Celery("shop", broker="redis://localhost/0")
        >>> throttle = Throttle(app, limits={"stripe": "100/s burst 20", "mail": "10/m"})
        >>> @app.task(throttle=["stripe", "mail:{tenant_id}"])
        ... def remind(tenant_id, order_id): ...
    """

    def __init__(
        self,
        app: Celery,
        limits: Mapping[str, CodeLimits] | None = None,
        *,
        routes: Mapping[str, RouteSpec] | None = None,
        enabled: bool | None = None,
        url: str | None = None,
        prefix: str | None = None,
        lease: float | None = None,
        max_wait_in_place: float | None = None,
        timeout: float | None = None,
        checks: str | None = None,
        waiting: str | None = None,
        publish: str | None = None,
        replicas: int | None = None,
        outage_workers: int | None = None,
        outage_grace: float | None = None,
        rules: str | os.PathLike[str] | None = None,
        shards: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(locals())  # the settings, by name
        if not isinstance(app, Celery):
            raise ConfigurationError(
                f"Throttle({shown(app)}): give it the app itself, as in "
                'app = Celery("shop"), then Throttle(app)'
            )
        if hasattr(app, "throttle"):
            raise ConfigurationError(f"app {app.main!r} has a Throttle already: app.throttle")
        super().__init__(app, given)
        if limits is not None:
            parse_definitions(limits)
        if lease is not None:
            check_lease("lease", lease)
        if limits is not None and routes is not None:
            for pattern, route in self.settings.routes.items():
                read_entries(route.limits, self.limits, f"throttle_routes[{pattern!r}]")
        declare_units_field()
        app.throttle = self  # type: ignore[attr-defined]  # Celery apps take attributes
        app.send_task = CheckedSend(app)  # type: ignore[method-assign]  # it is one
        _make_default_base(app)
        app.steps["consumer"].add("celery_throttle.worker.bootstep:ThrottleStep")

    def __getitem__(self, item: ItemLike) -> ThrottleHandle:
        """Return the handle of a limit, or of one key of it: ``throttle["mail", 42]``.

        It also has the methods for the tasks that wait for the limit.

        Args:
            item: The name of the limit, or a pair of name and key; see :class:`Limiter`.
        """
        return self.find_handle(item, ThrottleHandle)

    @property
    def line_publisher(self) -> LinePublisher | None:
        """Sends tasks to the end of their lines, with ``throttle_publish = "line"``.

        :meta private:
        """
        if self.settings.publish != "line" or not self.settings.enabled:
            return None
        return self._line_publisher

    @cached_property
    def _line_publisher(self) -> LinePublisher:
        from celery_throttle.bulk.capture import LinePublisher  # noqa: PLC0415  # see fan_out

        return LinePublisher(self)

    def fan_out(
        self,
        signatures: Iterable[Signature],
        name: str | None = None,
        *,
        max_waiting: int | None = None,
        keep: float = 86_400.0,
    ) -> FanOut:
        """Put many tasks straight into their lines, and return a handle to follow them.

        The tasks do not pass the broker. Their messages are the messages that Celery would send,
        with one additional header. They wait in lines of their own, which share the limits fairly
        with other lines. The call reads one signature at a time, so a generator may have any
        length. It returns when all tasks are in their lines.

        A task that was sent before under the same name and id is not sent again. To continue a
        fan-out that was interrupted, repeat the same call. A task without an id
        (``charge.s(42).set(task_id=...)``) gets an id from its position and arguments. In this
        case, the repeated call must yield the same tasks in the same order, or it sends them again.

        Args:
            signatures: Single tasks with limits, without ``eta`` and ``countdown``.
            name: The name of the fan-out, 1 to 200 printable characters. Default: a random name.
            max_waiting: The most tasks of the fan-out that may wait at the same time, 1 or more. At
                this number, the call waits. None (the default): any number. The call also waits
                while ``max-waiting`` or ``max-keys`` of a limit leaves no room.
            keep: Seconds for which the record of the fan-out is kept once none of its tasks waits,
                60 or more; default a day. After that, its name is free.

        Returns:
            The :class:`~celery_throttle.bulk.fan_out.handle.FanOut`.

        Raises:
            FanOutError: A signature cannot be part of a fan-out; the signatures before it are in
                their lines. Or an argument is wrong, or the fan-out was cancelled, or its record in
                one of several shards has expired: no task was sent.
            CostError: The cost of a signature is wrong; the signatures before it are in their
                lines.
            KeyValueError: The key of a signature is wrong; the signatures before it are in their
                lines.
            ConfigurationError: The settings of the app do not allow lines.
            KeysFullError: One signature names more keys of a limit than its ``max-keys`` allows;
                the signatures before it are in their lines.
            StoreUnavailableError: The server could not be reached for a minute. Repeat the call.

        Example:
            ::

                tasks = (remind.s(7, order).set(task_id=f"reminder-{order}") for order in orders())
                job = throttle.fan_out(tasks, name="reminders-2026-11-22")
        """
        # Of a higher layer, which most apps do not need.
        from celery_throttle.bulk.fan_out.publisher import fan_out  # noqa: PLC0415

        return fan_out(self, signatures, name, max_waiting=max_waiting, keep=keep)

    def fan_out_named(self, name: str) -> FanOut:
        """Return the handle of a fan-out that this or another process has begun.

        Args:
            name: The name of the fan-out.

        Raises:
            UnknownFanOutError: There is no such fan-out, or its record has expired.
            StoreUnavailableError: The server cannot be reached; with several shards, no server
                that can be reached has the fan-out.
        """
        from celery_throttle.bulk.fan_out import FanOut  # noqa: PLC0415  # as above

        found = FanOut(self, name)
        found.progress()
        return found

    def count_waiting(self) -> WaitingCount:
        """Return how many tasks :meth:`drain_all`, or the like, would remove now.

        Raises:
            StoreUnavailableError: The server cannot be reached; of several shards, none can.
        """
        return count_waiting(self, None)

    def drain_all(
        self,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send the waiting tasks of all limits back to the broker.

        Use it for a rollback, or before you uninstall this package. The result and the errors are
        those of ``throttle["mail"].drain()``.

        Args:
            reason: See there.
            by: See there.
            progress: See there.
        """
        return remove.drain(self, None, Author.of(by, reason), progress)

    def move_all(
        self,
        queue: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send the waiting tasks of all limits to another queue of the broker.

        The result and the errors are those of ``throttle["mail"].move()``.

        Args:
            queue: See there.
            reason: See there.
            by: See there.
            progress: See there.
        """
        return remove.move(self, None, queue, Author.of(by, reason), progress)

    def drop_all(
        self,
        *,
        reason: str = "dropped",
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Discard the waiting tasks of all limits. Their results have the state REVOKED.

        The result and the errors are those of ``throttle["mail"].drop()``.

        Args:
            reason: See there.
            by: See there.
            progress: See there.
        """
        return remove.drop(self, None, Author.of(by, reason), progress)

    def purge(self, queues: str | Iterable[str] | None = None) -> int:
        """Discard the messages of queues at the broker, and the tasks in the lines of these queues.

        ``celery purge`` discards only the messages at the broker. Tasks that workers have received
        or claimed still run. Discarded tasks get no result; fan-outs count them as revoked.

        Args:
            queues: The name of the queue, or the names of several. Default: all queues of the app,
                ``app.amqp.queues``.

        Returns:
            The number of messages and tasks that were discarded.

        Raises:
            QueueNotFoundError: A name is empty, or no text; nothing was discarded.
            StoreUnavailableError: The limits server cannot be reached. What was discarded before,
                also in other shards, stays discarded. The errors of the broker's client are raised
                unchanged.
        """
        names = self.app.amqp.queues if queues is None else queues
        return remove.purge(self, dict.fromkeys([names] if isinstance(names, str) else names))

    def current_run(self) -> Run | None:
        """Return the run of a task of the app that makes this call, if it may step out.

        :meta private:
        """
        return current_run(self)

    def current_task(self) -> tuple[str, str] | None:
        """Return the id and the name of the task of a worker that makes this call.

        :meta private:
        """
        return current_task()

    def check(self) -> None:
        """Check the settings, the routes, the rules file and the limits of all tasks.

        Call it in a test, or before a deploy. It imports the modules of the tasks, as a worker
        does, and calls no server.

        Raises:
            ConfigurationError: There are mistakes. The message has a line for each mistake.
        """
        self.app.loader.import_default_modules()
        validation.check(self)


def _make_default_base(app: Any) -> None:
    """Make ThrottledTask the default base of the app's tasks, under one that the app has or gets.

    An app has a base by ``task_cls``, or by an assignment to ``app.Task``, as Flask apps have.
    """
    _add_limits_to_base(app)
    create = app._task_from_fun  # noqa: SLF001  # through which every decorator makes its task

    def create_task(*args: Any, **options: Any) -> Any:
        if not issubclass(app.Task, ThrottledTask):  # it was assigned since
            _add_limits_to_base(app)
        return create(*args, **options)

    app._task_from_fun = create_task  # noqa: SLF001  # see above


def _add_limits_to_base(app: Any) -> None:
    # The app also stores here what it makes of `task_cls` at first use.
    own = vars(app).pop("Task", None) or symbol_by_name(app.task_cls)
    if own is Task:
        own = ThrottledTask
    elif not issubclass(own, ThrottledTask):
        # In this order, or defaults of ours would hide attributes of the app's class.
        own = type("ThrottledTask", (own, ThrottledTask), {"abstract": True})
    app.task_cls = own
