"""``Throttle(app)``: the limits of a Celery app."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from kombu.utils.imports import symbol_by_name

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.limits.requirement import LimitsLike, Requirement, parse_definitions
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.purge import include_lines
from celery_throttle.removal.methods import RemovalMethods
from celery_throttle.settings import Spec, check_lease
from celery_throttle.tasks import validation
from celery_throttle.tasks.context import current_run, declare_units_field
from celery_throttle.tasks.send_check import CheckedSend
from celery_throttle.tasks.task import ThrottledTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery.canvas import Signature

    from celery_throttle.fanout import FanOut
    from celery_throttle.fanout.line_publisher import LinePublisher


class Throttle(RemovalMethods):
    """The limits of a Celery app. Makes the app's workers enforce them.

    A :class:`~celery_throttle.limiter.Limiter` with the app's settings, so it has all methods of
    one. It connects to no server before it is used.

    Args:
        app: the app; ``app.throttle`` is this object from now on.
        limits, routes, enabled, url, prefix, lease, timeout, checks, waiting, publish, replicas,
            workers, outage_grace, rules: see :class:`~celery_throttle.settings.Settings`. The
            default of each is read from ``app.conf`` (``throttle_limits``, ...) at first use.

    Raises:
        LimitError: a definition is wrong.
        ConfigurationError: a setting is wrong, ``app`` is no app, or has a throttle already.
    """

    def __init__(
        self,
        app: Celery,
        limits: Mapping[str, LimitsLike] | None = None,
        *,
        routes: Mapping[str, Spec] | None = None,
        enabled: bool | None = None,
        url: str | None = None,
        prefix: str | None = None,
        lease: float | None = None,
        timeout: float | None = None,
        checks: str | None = None,
        waiting: str | None = None,
        publish: str | None = None,
        replicas: int | None = None,
        workers: int | None = None,
        outage_grace: float | None = None,
        rules: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(app, Celery):
            raise ConfigurationError(
                f"Throttle({shown(app)}): give it the app itself, as in "
                'app = Celery("shop"), then Throttle(app)'
            )
        if hasattr(app, "throttle"):
            raise ConfigurationError(f"app {app.main!r} has a Throttle already: app.throttle")
        given = {
            "limits": limits,
            "routes": routes,
            "enabled": enabled,
            "url": url,
            "prefix": prefix,
            "lease": lease,
            "timeout": timeout,
            "checks": checks,
            "waiting": waiting,
            "publish": publish,
            "replicas": replicas,
            "workers": workers,
            "outage_grace": outage_grace,
            "rules": rules,
        }
        super().__init__(app, given)
        if limits is not None:
            parse_definitions(limits)
        if lease is not None:
            check_lease(lease)
        if limits is not None and routes is not None:
            self.check_routes()
        declare_units_field()
        app.throttle = self  # type: ignore[attr-defined]  # Celery apps take attributes
        app.send_task = CheckedSend(app)  # type: ignore[method-assign]  # it is one
        _make_default_base(app)
        include_lines(app)
        app.steps["consumer"].add("celery_throttle.worker.bootstep:ThrottleStep")

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
        from celery_throttle.fanout.line_publisher import LinePublisher  # noqa: PLC0415  # see fan_out

        return LinePublisher(self)

    def fan_out(
        self,
        signatures: Iterable[Signature],
        name: str | None = None,
        *,
        max_waiting: int | None = None,
        keep: float = 86_400.0,
        bar: bool = False,
    ) -> FanOut:
        """Put many tasks straight into their lines, and return a handle to follow them.

        The tasks do not pass the broker. Their messages are those that Celery would send, with one
        more header. They wait in lines of their own, which share the limits fairly with others.
        Signatures are taken one by one, so a generator of any length needs no memory. The call ends
        when all tasks are in their lines.

        Tasks that were sent before under the same name and id are not sent again, whatever became
        of them. So repeat the same call to go on with a fan-out that was interrupted. A task
        without an id (``charge.s(42).set(task_id=...)``) gets one from its position and arguments:
        then the same tasks must come in the same order, or they are sent again.

        Args:
            signatures: single tasks with limits, without ``eta`` and ``countdown``.
            name: of the fan-out; random by default.
            max_waiting: how many of its tasks may wait at any time; the call waits until there are
                fewer. None for any number. The call also waits where a limit has ``max-waiting`` or
                ``max-keys``.
            keep: seconds for which the record of the fan-out is kept once none of its tasks waits;
                default a day, at least a minute. After that its name is free.
            bar: whether to show a progress bar on the terminal (standard error) meanwhile.

        Raises:
            FanOutError: a signature cannot be part of a fan-out; those before it are in lines. Or
                an argument is wrong, or the fan-out was cancelled: nothing was sent.
            CostError, KeyValueError, TypeError, kombu.exceptions.EncodeError: a signature's cost,
                key or arguments are wrong; those before it are in lines.
            ConfigurationError: the settings of the app do not allow lines.
            KeysFullError: more keys are needed at once than ``max-keys`` allows; signatures before
                this one are in lines.
            StoreUnavailableError: the server could not be reached for a minute.
        """
        # Of a higher layer, which most apps do not need.
        from celery_throttle.fanout.start import fan_out  # noqa: PLC0415

        return fan_out(self, signatures, name, max_waiting=max_waiting, keep=keep, bar=bar)

    def fan_out_named(self, name: str) -> FanOut:
        """Return the handle of a fan-out that any process has begun.

        Raises:
            UnknownFanOutError: there is no such fan-out, or its record has expired.
        """
        from celery_throttle.fanout import FanOut  # noqa: PLC0415  # as above

        found = FanOut(self, name)
        found.progress()
        return found

    def acquire_plan(
        self,
        requirement: Requirement,
        max_wait: float | None,
        *,
        mode: str = "take",
        holder: Holder | None = None,
    ) -> Plan[Acquisition]:
        """See :meth:`Limiter.acquire_plan`; within a task of a worker, see ``tasks/context.py``.

        A refusal that would raise Throttled lets the task step into its line. Without ``max_wait``
        the call takes units anew: it uses none that the run began with.
        """
        run = None if max_wait is None else current_run(self)
        if run is None or max_wait is None:
            return super().acquire_plan(requirement, max_wait, mode=mode, holder=holder)
        return run.taking(requirement, max_wait, mode=mode, holder=holder)

    def return_slots(self, acquisition: Acquisition) -> None:
        """See :meth:`Limiter.return_slots`."""
        run = current_run(self) if acquisition.task_items else None
        if run is not None:
            run.give_back(acquisition.task_items)

    def may_resend(
        self, requirement: Requirement, acquisition: Acquisition | None, stop: float, most: int
    ) -> bool:
        """See :meth:`Limiter.may_resend`; a task in a worker joins its line instead."""
        run = current_run(self)
        if run is not None:
            run.resend(requirement, acquisition, stop, most)
        return run is None

    def check(self) -> None:
        """Check the settings, the routes and the limits of all tasks: in a test, or at a deploy.

        The modules of the tasks are imported, as by a worker. No server is asked.

        Raises:
            ConfigurationError: there are mistakes; the message has a line for each.
        """
        self.app.loader.import_default_modules()
        validation.check(self)


def _make_default_base(app: Any) -> None:
    """Make ThrottledTask the default base of the app's tasks, above one of the app's own."""
    own = symbol_by_name(app.task_cls)
    app.task_cls = (
        ThrottledTask
        if own is Task
        else type("ThrottledTask", (ThrottledTask, own), {"abstract": True})
    )
    # The app caches its default base at first use.
    app.__dict__.pop("Task", None)
