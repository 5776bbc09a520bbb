"""The status of limits in words, for log lines and terminals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from math import inf, isinf

from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.limits.key import format_key
from celery_throttle.observe.values import Change, LimitStatus, Origin, Pause
from celery_throttle.operations.author import Author
from celery_throttle.store.keys import FAN_OUT_NAME

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

#: What was done to waiting tasks, by the action of a change.
REMOVALS = {"drain": "drained", "move": "moved", "drop": "dropped", "cancel": "cancelled"}


def format_seconds(seconds: float) -> str:
    """Return a duration in its two greatest units: ``"2 h 5 min"``, ``"35 s"``, ``"0.2 s"``."""
    if isinf(seconds):
        return "no end"
    if seconds < 10:  # noqa: PLR2004  # below that, tenths of a second matter
        return f"{seconds:.2g} s"
    rest, parts = round(seconds), []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def format_time(at: datetime) -> str:
    """Return a time as a log line has it: in UTC, to the second."""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def format_author(author: Author | None) -> str:
    """Return who, and why: ``" by ann@web-1: incident 12"``; empty if nobody is known."""
    if author is None:
        return ""
    return f" by {author.by}: {author.reason}" if author.reason else f" by {author.by}"


def add_author(text: str, author: Author | None) -> str:
    """Return ``"paused until it is resumed, by ann@web-1: incident 12"``."""
    return text if author is None else f"{text},{format_author(author)}"


def describe_pause(pause: Pause, show_time: Callable[[datetime], str] = format_time) -> str:
    """Return a pause in words: ``"paused until it is resumed, by ann@web-1: incident 12"``."""
    end = "it is resumed" if pause.until is None else show_time(pause.until)
    return add_author(f"paused until {end}", pause.author)


def pause_length_text(seconds: float) -> str:
    """Return ``"for 10 min"``, or ``"until it is resumed"``."""
    return "until it is resumed" if isinf(seconds) else f"for {format_seconds(seconds)}"


def describe_origin(origin: Origin | None) -> str:
    """Return in words where a definition comes from: ``"code"``, ``"run time by ann@web-1"``."""
    if origin is None:
        return "code, not registered yet"
    until = "" if origin.until is None else f" until {format_time(origin.until)}"
    author = "" if origin.layer == "code" else format_author(origin.author)
    return f"{origin.layer}{until}{author}"


def describe_limit(status: LimitStatus) -> str:
    """Return a limit in force with its origin and its pauses."""
    pauses = [describe_pause(pause) for pause in status.pauses]
    if status.paused_keys:
        pauses.append(f"{count(status.paused_keys, 'key')} paused")
    about = "; ".join([describe_origin(status.origin), *pauses])
    return f"{status.name} {' and '.join(status.clauses)} ({about})"


def describe_waiting(status: LimitStatus, seconds: float | None) -> str:
    """Return how many tasks wait at a limit: ``"stripe 20/s: 696 waiting, about 35 s"``."""
    parts = [f"{status.waiting:,} waiting"]
    if status.waiting and seconds is not None and seconds < inf:
        parts.append(f"about {format_seconds(seconds)}")
    parts += [describe_pause(pause) for pause in status.pauses]
    return f"{status.name} {' and '.join(status.clauses)}: {', '.join(parts)}"


def describe_subject(limit: str) -> str:
    """Return what a change was made to: ``"mail:dürer"``, ``"fan-out letters"``, ``"all limits"``.

    ``limit``: see :class:`~celery_throttle.Change`. Names and keys are shown as people write them.
    """
    name, colon, key = limit.partition(":")
    if name == FAN_OUT_NAME:
        return f"fan-out {format_key(key)}"
    return f"{name}{colon}{format_key(key)}" if limit else "all limits"


def describe_change(change: Change) -> str:
    """Return a change in words: ``"stripe: 20/s for 1 h instead of 100/s by ann@web-1"``."""
    subject, author = describe_subject(change.limit), format_author(change.author)
    if change.action == "pause":
        length = pause_length_text(pause_to_seconds(int(change.new)))
        return add_author(f"{subject}: paused {length}", change.author)
    if change.action == "resume":
        left = pause_to_seconds(int(change.old))
        rest = "" if isinf(left) else f", {format_seconds(left)} before the end of its pause"
        return f"{subject}: resumed{rest}{author}"
    if change.action == "reset":
        return f"{subject}: units in use and pause forgotten{author}"
    if change.action in REMOVALS:
        return f"{subject}: {REMOVALS[change.action]} {change.new}{author}"
    what = "weight " if change.action == "weight" else ""
    new = f"{what}{change.new}" if change.new else f"no {what or 'definition '}of its own"
    old = f" instead of {what}{change.old}" if change.old else ""
    ended = ", as the definition before has ended" if change.action == "end" else ""
    return f"{subject}: {new}{lasts_text(change)}{old}{ended}{author}"


def lasts_text(change: Change) -> str:
    """Return how long a new definition or weight lasts: ``" for 1 h"``; empty if it has no end."""
    if change.until is None:
        return ""
    return f" for {format_seconds((change.until - change.at).total_seconds())}"


def amount(units: float, decimals: int = 3) -> str:
    """Return a number of units, with so many decimals at most: ``"12,000"``, ``"0.25"``."""
    return f"{units:,.{decimals}f}".rstrip("0").rstrip(".")


def count(number: float, noun: str) -> str:
    """Return a number with its noun: ``"1 key"``, ``"1,200 keys"``, ``"0.5 units"``."""
    return f"{amount(number)} {noun if number == 1 else f'{noun}s'}"
