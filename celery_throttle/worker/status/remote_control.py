"""Remote control, for people who reach workers but not Redis: ``celery inspect throttle``.

A worker has these commands, and the ``celery`` command has to know them too, so this module imports
little. All workers get a ``control`` command at once; the first one carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.control import Panel, control_command, inspect_command

from celery_throttle.observe.status.stored import begin_once

_celery_ping = Panel.data["ping"]

#: Seconds for which the same command counts as the same broadcast.
_BROADCAST_SECONDS = 2.0


@inspect_command(args=[("limit", str), ("key", str)], signature="[LIMIT [KEY]]")
def throttle(state: Any, limit: str | None = None, key: str | None = None) -> Any:
    """Show all limits with their waiting tasks and pauses, or the details of one limit."""
    from celery_throttle.observe.status_text import to_json  # noqa: PLC0415  # see above

    limits = state.app.throttle
    if limit is None:
        return to_json(limits.status())
    return to_json(_handle(limits, limit, key).status())


@inspect_command(default_timeout=0.2)
def ping(state: Any, throttle: Any = None, **arguments: Any) -> Any:
    """Ping worker(s)."""
    if throttle is not None:  # from another worker, see the module that is imported
        from celery_throttle.worker.membership.split_limits import receiver_of  # noqa: PLC0415  # see above

        receiver = receiver_of(state.app)
        if receiver is not None:
            receiver.receive(throttle)
    return _celery_ping(state, **arguments)


@inspect_command(args=[("task_id", str)], signature="TASK_ID")
def throttle_why(state: Any, task_id: str) -> Any:
    """Show where a task is, and why it does not run yet."""
    from celery_throttle.observe.status_text import to_json  # noqa: PLC0415  # see above

    return to_json(state.app.throttle.explain(task_id))


@control_command(
    args=[("limit", str), ("seconds", float), ("reason", str), ("key", str)],
    signature="LIMIT [SECONDS [REASON [KEY]]]",
)
def throttle_pause(
    state: Any,
    limit: str,
    seconds: float | None = None,
    reason: str | None = None,
    key: str | None = None,
) -> Any:
    """Pause a limit, for a number of seconds or until it is resumed."""

    def pause(limits: Any, by: str) -> str:
        _handle(limits, limit, key).pause(seconds or None, reason=reason, by=by)
        return f"{limit} is paused"

    return _once(state, f"pause {limit} {seconds} {reason} {key}", pause)


@control_command(args=[("limit", str), ("key", str)], signature="LIMIT [KEY]")
def throttle_resume(state: Any, limit: str, key: str | None = None) -> Any:
    """Lift the pause of a limit, or of one key of it."""

    def resume(limits: Any, by: str) -> str:
        was_paused = _handle(limits, limit, key).resume(by=by)
        return f"{limit} is resumed" if was_paused else f"{limit} was not paused"

    return _once(state, f"resume {limit} {key}", resume)


@control_command(
    args=[("limit", str), ("definition", str), ("seconds", float), ("reason", str), ("key", str)],
    signature="LIMIT DEFINITION [SECONDS [REASON [KEY]]]",
)
def throttle_define(  # noqa: PLR0917  # Celery's arguments come by position
    state: Any,
    limit: str,
    definition: str,
    seconds: float | None = None,
    reason: str | None = None,
    key: str | None = None,
) -> Any:
    """Define a limit, for a number of seconds or until it is undefined."""

    def define(limits: Any, by: str) -> str:
        handle = _handle(limits, limit, key)
        handle.define(definition, seconds=seconds or None, reason=reason, by=by)
        return f"{limit} is {definition}"

    return _once(state, f"define {limit} {definition} {seconds} {reason} {key}", define)


@control_command(args=[("limit", str), ("key", str)], signature="LIMIT [KEY]")
def throttle_undefine(state: Any, limit: str, key: str | None = None) -> Any:
    """Remove the run-time definition of a limit, or of one key of it."""

    def undefine(limits: Any, by: str) -> str:
        _handle(limits, limit, key).undefine(by=by)
        return f"{limit} is no longer defined at run time"

    return _once(state, f"undefine {limit} {key}", undefine)


def _handle(limits: Any, limit: str, key: str | None) -> Any:
    return limits[limit] if key is None else limits[limit, key]


def _once(state: Any, what: str, change: Callable[[Any, str], str]) -> Any:
    """Let the first worker carry out a change; return what each of them replies."""
    from celery_throttle.errors import ThrottleError  # noqa: PLC0415  # see above

    limits = state.app.throttle
    try:
        if not limits.run_plan(begin_once(limits.observer, f"remote {what}", _BROADCAST_SECONDS)):
            return {"ok": "another worker does it"}
        return {"ok": change(limits, f"remote control of {state.hostname}")}
    except ThrottleError as error:
        return {"error": str(error)}
