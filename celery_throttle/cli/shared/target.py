"""The limits that a command is about: those of an app, or of a server without an app."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import click
from celery import Celery
from celery.app.utils import find_app

from celery_throttle.cli.shared.exit_codes import ArgumentError
from celery_throttle.errors import StoreUnavailableError, UnknownLimitError
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.observer import Observer, pair_up, read_keys
from celery_throttle.observe.status.stored import read_names
from celery_throttle.observe.status_text import lost_texts
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import unknown_limit_error
from celery_throttle.tasks.app_limits import AppLimits

T = TypeVar("T")


class Target:
    """The limits that a command is about: of an app, or of a server without an app."""

    def __init__(self, ctx: click.Context) -> None:
        self._root = ctx.find_root()
        self.has_app = "url" not in self._root.params

    @cached_property
    def throttle(self) -> AppLimits:
        """The limits. Without an app, those of an app that has only the URL and the prefix.

        Raises:
            ArgumentError: the command line names no server, or an app that has no limits.
        """
        if self.has_app:
            # While the shell completes a command, Celery has not loaded the app.
            app = self._root.obj.app if self._root.obj else find_app(self._root.params["app"])
            throttle = getattr(app, "throttle", None)
            if isinstance(throttle, AppLimits):
                return throttle
            raise ArgumentError(
                f"app {app.main or 'default'!r} has no limits; add Throttle(app), or name another "
                "app: celery -A APP throttle ..."
            )
        if self._root.params["url"]:
            home = self._home
            shards = home.run_plan(_read_shards(home.observer)) if home.observer.has_server else {}
            return AppLimits(home.app, {**home.given, "shards": shards}) if shards else home
        raise ArgumentError(
            "no server is named; give --url, or set THROTTLE_URL, for example to "
            "redis://localhost:6379/1"
        )

    @cached_property
    def _home(self) -> AppLimits:
        """The limits of a server, without those of its shards."""
        params = self._root.params
        app = Celery("celery-throttle", set_as_current=False)
        return AppLimits(app, {"url": params["url"], "prefix": params["prefix"]})

    @property
    def limiter(self) -> Limiter:
        """The limits of the app, or of the server: the latter have no queues of their own.

        What serves them for days may start before the server does: then its shards are left out.
        """
        if self.has_app:
            return self.throttle
        try:
            throttle = self.throttle
        except StoreUnavailableError as error:
            note = "if it has shards, start this command again when the server is back"
            click.echo(f"{error}; {note}", err=True)
            throttle = self._home
        settings, given = throttle.settings, throttle.given
        return Limiter(settings.url, prefix=settings.prefix, shards=given.get("shards"))

    def require_app(self, reason: str) -> None:
        """Raise an error unless there is an app; ``reason``: for what it is needed."""
        if not self.has_app:
            raise ArgumentError(f"this needs the app, {reason}; use: celery -A APP throttle ...")

    def check_known(self, ref: LimitRef) -> None:
        """Raise UnknownLimitError, with the nearest name, if nobody defines a limit."""
        throttle = self.throttle
        try:
            throttle.run_plan(throttle.plans.check_known(ref))
        except UnknownLimitError:
            names = {*self.read(read_names), *throttle.limits}
            raise unknown_limit_error(ref.name, names) from None

    def read(self, reader: Callable[[Observer], Plan[T]], ref: LimitRef | None = None) -> T:
        """Run a plan in all shards, or in those that have a limit. Names those that are lost."""
        return self.merged(self.throttle.read(reader, ref))

    def merged(self, reading: Reading[T]) -> T:
        """Return what was read of the shards. Names on standard error those that are lost."""
        value = reading.merged()
        for text in lost_texts(reading.lost):
            click.echo(f"{text}; what it has is missing", err=True)
        return value

    def queue_name(self, queue: str) -> str:
        """Return the name of a queue without its broker, if that is the app's."""
        return queue.removeprefix(self.throttle.own_broker) if self.has_app else queue


def _read_shards(observer: Observer) -> Plan[dict[str, dict[str, Any]]]:
    """Return the shards that the home shard knows, as the settings of an app write them.

    Passwords are not stored: a shard on another server that needs one counts as lost.
    """
    _, (flat,) = yield from read_keys(observer, ("HGETALL", observer.keys.shards))
    fields = pair_up(flat)
    shards: dict[str, dict[str, Any]] = {}
    for name, entry in fields.items():
        shard = entry.split(" ")[1] if " " in entry else "@"
        identity = fields.get(f"@{shard}")
        if not name.startswith("@") and identity is not None:
            by_key, _, url = identity.partition(" ")
            about: dict[str, Any] = {
                "limits": [],
                "by_key": int(by_key) or None,
                "url": url or None,
            }
            shards.setdefault(shard, about)["limits"].append(name)
    return shards


def pass_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the limits of the command line to a command, as its first argument."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        return command(Target(click.get_current_context()), *args, **options)

    return run
