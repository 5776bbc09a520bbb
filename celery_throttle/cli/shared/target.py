"""The limits that a command is about: those of an app, or of a server without an app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import click
from celery import Celery
from celery.app.utils import find_app

from celery_throttle.cli.shared.exit_codes import CommandError, ExitCode
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.tasks.app_limits import AppLimits

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """The limits that a command is about.

    Attributes:
        throttle: the limits. Without an app, those of an app that has only the URL and the prefix.
        has_app: whether they are those of an app.
    """

    throttle: AppLimits
    has_app: bool

    @property
    def limiter(self) -> Limiter:
        """The limits of the app, or of the server: the latter have no queues of their own."""
        if self.has_app:
            return self.throttle
        settings = self.throttle.settings
        return Limiter(settings.url, prefix=settings.prefix)

    def require_app(self, reason: str) -> None:
        """Raise an error unless there is an app; ``reason``: for what it is needed."""
        if not self.has_app:
            raise CommandError(
                f"this needs the app, {reason}; use: celery -A APP throttle ...", ExitCode.USAGE
            )

    @cached_property
    def _own_broker(self) -> str:
        return self.throttle.own_broker if self.has_app else ""

    def queue_name(self, queue: str) -> str:
        """Return the name of a queue without its broker, if that is the app's."""
        return queue.removeprefix(self._own_broker)


def find_target(ctx: click.Context) -> Target:
    """Return the limits of the app or server that the command line names.

    Raises:
        CommandError: it names none, or the app has no limits.
    """
    root = ctx.find_root()
    if "url" in root.params:
        return _target_of_url(root.params["url"], root.params["prefix"])
    # While the shell completes a command, Celery has not loaded the app.
    app = root.obj.app if root.obj else find_app(root.params["app"])
    throttle = getattr(app, "throttle", None)
    if not isinstance(throttle, AppLimits):
        raise CommandError(
            f"app {app.main or 'default'!r} has no limits; add Throttle(app), or name another app: "
            "celery -A APP throttle ...",
            ExitCode.USAGE,
        )
    return Target(throttle, has_app=True)


def _target_of_url(url: str | None, prefix: str | None) -> Target:
    if not url:
        raise CommandError(
            "no server is named; give --url, or set THROTTLE_URL, for example to "
            "redis://localhost:6379/1",
            ExitCode.USAGE,
        )
    app = Celery("celery-throttle", set_as_current=False)
    return Target(AppLimits(app, {"url": url, "prefix": prefix}), has_app=False)


def pass_target(command: F) -> F:
    """Pass the limits of the command line to a command, as its first argument."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        return command(find_target(click.get_current_context()), *args, **options)

    return run  # type: ignore[return-value]  # without the first argument
