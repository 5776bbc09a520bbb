"""The consumer's step of a worker with limits: checks them, then starts and stops the rest."""

from __future__ import annotations

from typing import Any

import click
from celery import bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]  # missing in the stubs

from celery_throttle.errors import ConfigurationError
from celery_throttle.store.url import MEMORY_URL, is_memory_url
from celery_throttle.tasks import validation
from celery_throttle.tasks.context import return_unused_units
from celery_throttle.tasks.option_warnings import warn_of_rate_limit
from celery_throttle.worker.health.preflight import check_store
from celery_throttle.worker.hooks import remote_control  # noqa: F401  # Celery registers it
from celery_throttle.worker.request import install
from celery_throttle.worker.worker import ThrottleWorker


class ThrottleStep(bootsteps.StartStopStep):
    """Celery's step for a worker whose tasks have limits, or had limits before."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        try:
            self._prepare(c, c.app.throttle)
        except ConfigurationError as error:
            if click.get_current_context(silent=True) is None:
                raise
            # In `celery worker` a traceback would hide the mistakes of a user.
            raise click.ClickException(str(error)) from None

    def _prepare(self, c: Any, throttle: Any) -> None:
        """Check the app and its server, and install the gate in all tasks."""
        # A mistake in the rules file is logged: without this worker the queue would be worse off.
        validation.check(throttle, rules_file=False)
        if not throttle.settings.enabled:
            self.enabled = False
            _ = throttle.plans  # logs it
            return
        # Without limits tasks may still wait in lines, from when the code had limits.
        self.enabled = bool(throttle.limits) or throttle.settings.has_server
        if throttle.clock is not None:
            raise ConfigurationError(
                "a worker decides by the time of its server, not by a clock of its own "
                "(throttle_clock in tests)"
            )
        if self.enabled and is_memory_url(throttle.settings.url):
            raise ConfigurationError(
                f"throttle_url is {MEMORY_URL!r}, the memory of one process, but a worker's limits "
                "and lines need a server; allowed: the URL of a Redis or Valkey server, or "
                "throttle_enabled = False"
            )
        tasks = list(c.app.tasks.values())
        if self.enabled:
            for task in tasks:  # any task may meet a limit in its body
                install(task)
            return_unused_units(throttle)  # before the pool forks
        if throttle.limits or throttle.rules_file:
            for task in tasks:
                route = throttle.declared.route_of(task)
                # Limits by a route; others were checked where the task is defined.
                if route is not None and getattr(task, "throttle", None) is None:
                    warn_of_rate_limit(task)
            keys_by_store = {part.store: part.keys for part in reversed(throttle.app_parts)}
            for store, keys in keys_by_store.items():
                check_store(store, keys, throttle.settings.checks)

    def create(self, c: Any) -> ThrottleWorker:  # type: ignore[override]  # the base returns what it made
        """Make what outlives lost connections to the broker."""
        return ThrottleWorker(c)

    def register_with_event_loop(self, _c: Any, _hub: Any) -> None:
        """Attach to the event loop, which was emptied if the connection was lost."""
        self.obj.timers.attach()

    def stop(self, c: Any) -> None:
        """Stop: the connection is lost, or the worker is shutting down."""
        self.obj.stop(for_good=c.blueprint.state != RUN)

    def terminate(self, c: Any) -> None:
        """Stop: the worker is shutting down without waiting for its tasks."""
        self.stop(c)

    def shutdown(self, _c: Any) -> None:
        """End: the pool has ended."""
        self.obj.end()

    def info(self, _c: Any) -> dict[str, Any]:  # type: ignore[override]  # the base returns None
        """Return what ``celery inspect stats`` shows under ``throttle``."""
        return {"throttle": self.obj.stats()} if self.obj else {}
