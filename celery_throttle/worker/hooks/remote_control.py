"""Remote control, for people who reach workers but not Redis: ``celery inspect throttle``.

A worker has these commands, and the ``celery`` command has to know them too, so this module imports
little. All workers get a ``control`` command at once; the first one carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.worker.control import Panel, control_command, inspect_command

from celery_throttle.observe.status.stored import begin_once

_celery_ping = Panel.data["ping"]

#: Seconds for which the same command counts as the same broadcast.
_BROADCAST_SECONDS = 2.0


@inspect_command(args=[("limit", str), ("key", str)], signature="[LIMIT [KEY]]")
def throttle(state: Any, limit: str | None = None, key: str | None = None) -> Any:
    """Show all limits with their waiting tasks and pauses, or the details of one limit."""
    limits = state.app.throttle
    return _show((limits if limit is None else _handle(limits, limit, key)).status())


@inspect_command(args=[("task_id", str)], signature="TASK_ID")
def throttle_why(state: Any, task_id: str) -> Any:
    """Show where a task is, and why it does not run yet."""
    return _show(state.app.throttle.explain(task_id))


@inspect_command(default_timeout=0.2)
def ping(state: Any, throttle: Any = None, **arguments: Any) -> Any:
    """Ping worker(s)."""
    if throttle is not None:  # the announcement of another worker, see `split_limits.py`
        receiver = getattr(state.app, "throttle_split_limits", None)
        if receiver is not None:
            receiver.receive(throttle)
    return _celery_ping(state, **arguments)


def _handle(limits: Any, limit: str, key: str | None) -> Any:
    return limits[limit] if key is None else limits[limit, key]


def _show(status: Any) -> Any:
    from celery_throttle.observe.status_text import to_json  # noqa: PLC0415  # see above

    return to_json(status)


def _change(signature: str, **arguments: type) -> Callable[[Callable[..., str]], Any]:
    """Make a command of a function that changes a limit, and returns what is true of it then.

    The first worker carries it out. ``arguments``: their types, beside the limit and its key.
    """

    def make_command(change: Callable[..., str]) -> Any:
        @wraps(change)
        def command(state: Any, limit: str, key: str | None = None, **values: Any) -> Any:
            from celery_throttle.errors import ThrottleError  # noqa: PLC0415  # see above

            limits, what = state.app.throttle, f"{change.__name__} {limit} {key} {values}"
            try:
                if not limits.run_plan(begin_once(limits.observer, what, _BROADCAST_SECONDS)):
                    return {"ok": "another worker does it"}
                by = f"remote control of {state.hostname}"
                return {"ok": f"{limit} {change(_handle(limits, limit, key), by=by, **values)}"}
            except ThrottleError as error:
                return {"error": str(error)}

        named = [("limit", str), *arguments.items(), ("key", str)]
        return control_command(args=named, signature=signature)(command)

    return make_command


@_change("LIMIT [SECONDS [REASON [KEY]]]", seconds=float, reason=str)
def throttle_pause(
    handle: Any, *, by: str, seconds: float | None = None, reason: str | None = None
) -> str:
    """Pause a limit, for a number of seconds or until it is resumed."""
    handle.pause(seconds or None, reason=reason, by=by)
    return "is paused"


@_change("LIMIT [KEY]")
def throttle_resume(handle: Any, *, by: str) -> str:
    """Lift the pause of a limit, or of one key of it."""
    return "is resumed" if handle.resume(by=by) else "was not paused"


@_change("LIMIT DEFINITION [SECONDS [REASON [KEY]]]", definition=str, seconds=float, reason=str)
def throttle_define(
    handle: Any,
    *,
    by: str,
    definition: str,
    seconds: float | None = None,
    reason: str | None = None,
) -> str:
    """Define a limit, for a number of seconds or until it is undefined."""
    handle.define(definition, lasts=seconds or None, reason=reason, by=by)
    return f"is {definition}"


@_change("LIMIT [KEY]")
def throttle_undefine(handle: Any, *, by: str) -> str:
    """Remove the run-time definition of a limit, or of one key of it."""
    handle.undefine(by=by)
    return "is no longer defined at run time"
