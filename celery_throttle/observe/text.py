"""The status of limits in words, for log lines and terminals."""

from __future__ import annotations

from datetime import datetime
from math import inf, isinf

from celery_throttle.limits.author import Author
from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.observe.values import Change, LimitStatus, Origin, Pause

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


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


def describe_pause(pause: Pause) -> str:
    """Return a pause in words: ``"paused until resumed by ann@web-1: incident 12"``."""
    until = "until resumed" if pause.until is None else f"until {format_time(pause.until)}"
    return f"paused {until}{format_author(pause.author)}"


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


def describe_change(change: Change) -> str:
    """Return a change in words: ``"stripe: 20/s instead of 100/s by ann@web-1: incident 12"``."""
    author = format_author(change.author)
    if change.action == "pause":
        seconds = pause_to_seconds(int(change.new))
        until = "until resumed" if isinf(seconds) else f"for {format_seconds(seconds)}"
        return f"{change.limit}: paused {until}{author}"
    if change.action == "resume":
        left = pause_to_seconds(int(change.old))
        rest = "" if isinf(left) else f", {format_seconds(left)} before the end of its pause"
        return f"{change.limit}: resumed{rest}{author}"
    if change.action == "reset":
        return f"{change.limit}: units in use and pause forgotten{author}"
    what = "weight " if change.action == "weight" else ""
    new = f"{what}{change.new}" if change.new else f"no {what}definition of its own".rstrip()
    old = f" instead of {what}{change.old}" if change.old else ""
    ended = ", as the definition before has ended" if change.action == "end" else ""
    return f"{change.limit}: {new}{old}{ended}{author}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``"1 key"``, ``"1,200 keys"``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
