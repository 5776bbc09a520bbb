"""The actions of the page: their fields, and what each will do.

An action is a method of a handle, of a limit or of a fan-out: it has the method's name, and its
fields are the method's arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import MICROSECONDS, parse_duration
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status.definitions import (
    limits_below,
    preview_definition,
    preview_pause,
    preview_reset,
    preview_resume,
)
from celery_throttle.observe.status.fleet import is_consumed
from celery_throttle.observe.status_text import (
    below_text,
    limit_text,
    reset_text,
    unconsumed_text,
    waiting_text,
)
from celery_throttle.observe.text import count, pause_length_text
from celery_throttle.observe.values import LimitStatus, Preview
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import parse_definition
from celery_throttle.web.site import Site

#: Seconds after which one request removes no further tasks, so that a browser gets its answer.
REMOVAL_SECONDS = 10.0

#: The values of the fields of an action, by name.
Values = Mapping[str, Any]


class TimeIsUpError(Exception):
    """An action has used up the time of its request. What it has done so far is complete."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """What an action will do."""

    text: str = ""  #: what it does, in words
    preview: Preview | None = None  #: the effect on the expected end of the waiting tasks
    found: Any = None  #: the ``WaitingCount`` of the tasks that it takes out of lines


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an action."""

    name: str
    argument: str  #: the argument of the method that gets its value
    label: str  #: what it is, in words
    hint: str  #: what may be written
    parse: Callable[[str], Any]  #: returns its value; LimitError: the text cannot be used
    lines: int = 1  #: the lines of text that it shows
    default: str | None = None  #: what an empty field means, in words; None if it must not be empty
    choices: tuple[str, ...] = ()  #: texts of which a click chooses one, beside what is typed


@dataclass(frozen=True, slots=True)
class Action:
    """What a user can do to a limit, to one key of it, or to a fan-out."""

    name: str  #: the name of the method, one of ``security.ACTIONS``
    #: Returns its consequence for a handle, with the values of its fields.
    preview: Callable[[Site, Any, Values], Consequence]
    fields: tuple[Field, ...] = ()  #: what a user fills in before the preview
    is_dangerous: bool = False  #: whether no other action brings back what it removes
    needs_app: bool = False  #: whether a limiter without an app cannot do it

    @property
    def removes(self) -> bool:
        """Whether it takes the waiting tasks of a limit out of their lines."""
        return self.name in ("drain", "move", "drop")

    def run(self, handle: Any, values: Values, author: Author) -> None:
        """Carry it out. TimeIsUpError: a part of it is left."""
        arguments = {field.argument: values[field.name] for field in self.fields}
        if author.reason:
            arguments["reason"] = author.reason
        if self.removes:
            arguments["progress"] = _limit_time()
        getattr(handle, self.name)(**arguments, by=author.by)


def _limit_time() -> Callable[[int, int], None]:
    """Return a function for the progress of a removal, which ends it in time."""
    end = time.monotonic() + REMOVAL_SECONDS

    def stop_in_time(done: int, total: int) -> None:
        if done < total and time.monotonic() > end:
            raise TimeIsUpError

    return stop_in_time


def _parse_limits(text: str) -> list[Limit]:
    return [Limit.of(line.strip()) for line in text.splitlines() if line.strip()]


def _parse_weight(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # also for thousands of digits
        raise LimitValueError(f"weight {shown(text)} is no number; allowed: 1 to 100") from None


def _duration_field(default: str) -> Field:
    return Field(
        "for",
        "lasts",
        "Duration",
        "a duration, such as 90s or 1h30m",
        lambda text: parse_duration(text) / MICROSECONDS,
        default=default,
        choices=("10m", "1h", "4h", "1d"),
    )


def _preview_pause(site: Site, handle: Any, values: Values) -> Consequence:
    ref, seconds, pauses = handle.ref, values["for"], handle.status().pauses
    preview = site.read(lambda observer: preview_pause(observer, ref, seconds), ref)
    if seconds is None:
        return Consequence(f"{waiting_text(preview.waiting)}; none starts until it is resumed.")
    in_force = max((pause.seconds for pause in pauses if pause.key == ref.key), default=0.0)
    if in_force > seconds:
        return Consequence(
            f"This changes nothing: {limit_text(*ref)} is paused {pause_length_text(in_force)}, "
            "and a pause is never shortened. Resume it first."
        )
    return Consequence("", preview)


def _preview_resume(site: Site, handle: Any, _: Values) -> Consequence:
    ref, status = handle.ref, handle.status()
    keys = count(status.paused_keys, "key")
    rest = f"{keys} {'stays' if status.paused_keys == 1 else 'stay'} paused."
    text = rest if status.paused_keys else ""
    if all(pause.key != ref.key for pause in status.pauses):
        return Consequence(f"It is not paused. {text}")
    return Consequence(text, site.read(lambda observer: preview_resume(observer, ref), ref))


def _preview_define(site: Site, handle: Any, values: Values) -> Consequence:
    ref = handle.ref
    limits, _ = parse_definition(
        site.limiter.plans, ref, values["limits"], values["weight"], values["for"]
    )
    if limits is None:
        return Consequence("The limits do not change.")
    preview = site.read(lambda observer: preview_definition(observer, ref, limits), ref)
    return Consequence("", preview)


def _preview_undefine(site: Site, handle: Any, _: Values) -> Consequence:
    ref = handle.ref
    below = site.read(lambda observer: limits_below(observer, ref), ref)
    preview = site.read(lambda observer: preview_definition(observer, ref, below), ref)
    return Consequence(below_text(below), preview)


def _preview_reset(site: Site, handle: Any, _: Values) -> Consequence:
    ref = handle.ref
    site.limiter.run_plan(site.limiter.plans.check_known(ref))
    preview = site.read(lambda observer: preview_reset(observer, ref), ref)
    return Consequence(reset_text(ref), preview)


def _preview_removal(text: str) -> Callable[[Site, Any, Values], Consequence]:
    return lambda _site, handle, _values: Consequence(text, found=handle.count_waiting())


def _preview_move(site: Site, handle: Any, values: Values) -> Consequence:
    queue = values["queue"]
    text = f"They go to queue {queue}."
    qualified = site.limiter.own_broker + queue
    if not site.read(lambda observer: is_consumed(observer, qualified)):
        text += f" {unconsumed_text(queue)}"
    return Consequence(text, found=handle.count_waiting())


def _preview_fan_out(text: str) -> Callable[[Site, Any, Values], Consequence]:
    def preview(_site: Site, handle: Any, _values: Values) -> Consequence:
        return Consequence(f"{waiting_text(handle.progress().waiting)}. {text}")

    return preview


_PAUSE = (_duration_field("until it is resumed"),)
_DEFINITION = (
    Field(
        "limits",
        "definition",
        "Limit",
        "one limit in each line, such as 50/s burst 20; all of them must allow a task",
        _parse_limits,
        lines=3,
        default="no change",
    ),
    Field("weight", "weight", "Weight", "1 to 100", _parse_weight, default="no change"),
    _duration_field("until undefine"),
)
_QUEUE = (Field("queue", "queue", "Queue", "the name of a queue of the app", str),)
_DISCARDED = "They are discarded for good: the state of each becomes REVOKED."


def sort_actions(
    actions: Sequence[Action], status: LimitStatus
) -> tuple[list[Action], list[Action]]:
    """Return the actions that may change something: those in sight, and those behind "More".

    Tasks that need a limit may wait at another one, so removals are always among them.
    """
    is_paused = any(pause.key == status.key for pause in status.pauses)
    is_changed = status.origin is not None and status.origin.layer == "run time"
    applies = {"resume": is_paused, "undefine": is_changed or status.weight != 1}
    in_sight = {"pause": not is_paused, "resume": True, "define": True, "undefine": True}
    some = [one for one in actions if applies.get(one.name, True)]
    first = [one for one in some if in_sight.get(one.name, False)]
    return first, [one for one in some if one not in first]


LIMIT_ACTIONS = (
    Action("pause", _preview_pause, _PAUSE),
    Action("resume", _preview_resume),
    Action("define", _preview_define, _DEFINITION),
    Action("undefine", _preview_undefine, is_dangerous=True),
    Action("reset", _preview_reset, is_dangerous=True),
    Action("drain", _preview_removal("They go back to their queues."), needs_app=True),
    Action("move", _preview_move, _QUEUE, needs_app=True),
    Action("drop", _preview_removal(_DISCARDED), is_dangerous=True, needs_app=True),
)

FAN_OUT_ACTIONS = (
    Action(
        "pause",
        _preview_fan_out(
            "None of them starts during the pause. A pause in force is never shortened."
        ),
        _PAUSE,
        needs_app=True,
    ),
    Action(
        "resume", _preview_fan_out("They can start again, as their limits allow."), needs_app=True
    ),
    Action("cancel", _preview_fan_out(_DISCARDED), is_dangerous=True, needs_app=True),
)
