"""Warnings of attributes and settings without the expected effect: misspelt names, ``rate_limit``.

No name may have no effect, silently.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple

from celery.utils.time import rate

#: The first word of the names of all attributes and settings of this package.
OURS = "throttle"

#: The attributes of a task; none of them is a setting. `ThrottledTask` has their defaults.
TASK_ATTRIBUTES = (
    OURS,
    "throttle_cost",
    "throttle_max_wait",
    "throttle_on_max_wait",
    "throttle_keep_waiting",
    "throttle_settles",
    "throttle_restart",
    "throttle_track",
)

#: The least similarity of a misspelt name, 0 to 1: of the whole, of its first word, of the rest.
_WHOLE, _FIRST, _REST = 0.9, 0.85, 0.75


class ThrottleWarning(UserWarning):
    """Warns of a task attribute or a setting that does not have the expected effect.

    Python shows the warning when the task is defined, or when the settings are first read. It has
    two causes: a name that only resembles a name of this package, such as ``throtle=`` or
    ``app.conf.throttle_limit``; or a task that has both limits and Celery's own ``rate_limit``.
    """


class Misspelling(NamedTuple):
    """A misspelt name."""

    text: str  #: the message: the name, and what to write instead
    #: Whether it is no other name: it begins with `throttle_`, or resembles `throttle` and has the
    #: name of a limit.
    certain: bool


def find_in_task(cls: type, base: type) -> Iterator[Misspelling]:
    """Yield the misspelt attributes of a task's class; ``base`` has the right ones."""
    where = f"task {getattr(cls, 'name', cls.__name__)!r}"
    for name in sorted({*dir(cls)} - {*dir(base)}):
        certain = name.startswith(f"{OURS}_")
        right = _find_right(name, TASK_ATTRIBUTES)
        if certain or (right and _is_option(inspect.getattr_static(cls, name), right)):
            certain = certain or right == OURS
            yield Misspelling(
                f"{where}: attribute {_advise(name, right, TASK_ATTRIBUTES)}", certain
            )


def _is_option(value: Any, right: str) -> bool:
    """Whether a value fits the attribute ``right``; otherwise the name may be the user's own."""
    if right == OURS:
        return isinstance(value, (str, list, tuple))
    return not callable(value) and not isinstance(value, (bool, property))


def find_in_settings(conf: Any, known: Collection[str]) -> Iterator[Misspelling]:
    """Yield the misspelt settings of ``app.conf``; ``known`` are the right names."""
    names = sorted(map(str, conf))  # Celery loads its settings at the first access
    prefix = str(conf.prefix or "")  # the namespace: "CELERY_"
    for written in names:
        prefixed = bool(prefix) and written.startswith(prefix)
        read = prefixed or written.islower()  # Celery reads no others
        if prefix and not read:  # a settings module contains settings of other packages, too
            continue
        name = written.removeprefix(prefix).lower()
        if read and name in known:
            continue
        right = name if name in {*known, *TASK_ATTRIBUTES} else _find_right(name, known)
        certain = read and name.startswith(f"{OURS}_")
        if certain or right:
            if right and right in known and prefixed and written.isupper():
                right = f"{prefix}{right.upper()}"
            yield Misspelling(f"app.conf: setting {_advise(written, right, known)}", certain)


def _find_right(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt name resembles, or None."""
    similar = get_close_matches(name, known, 1, _WHOLE)
    if similar:
        return similar[0]
    first, _, rest = name.partition("_")
    if not get_close_matches(first, [OURS], 1, _FIRST):
        return None
    rests = {one.removeprefix(OURS).removeprefix("_"): one for one in known}
    similar = get_close_matches(rest, rests, 1, _REST)
    return rests[similar[0]] if similar else None


def _advise(name: str, right: str | None, known: Iterable[str]) -> str:
    advice = f"write {right!r}" if right else f"allowed: {', '.join(map(repr, known))}"
    if right in TASK_ATTRIBUTES and right not in known:
        advice = f"it is an attribute of tasks; write @app.task({right}=...)"
    return f"{name!r} has no effect; {advice}"


def warn(texts: Iterable[str], function: Any = None) -> None:
    """Show warnings; ``function``: the decorated function that they are about, if any."""
    code = getattr(function, "__code__", None)
    location = ("app.conf", 0) if code is None else (code.co_filename, code.co_firstlineno)
    for text in texts:
        warnings.warn_explicit(text, ThrottleWarning, *location)


def warn_of_rate_limit(task: Any) -> None:
    """Warn if a task with limits has a ``rate_limit``: its own, or ``task_default_rate_limit``."""
    written = task.rate_limit
    with suppress(TypeError, ValueError):  # Celery reports a wrong rate_limit itself
        if written is not None and rate(str(written)):
            text = (
                f"task {task.name!r} has limits and rate_limit={written!r}, which counts in each "
                "worker by itself and keeps tasks waiting there; write it as one more limit, which "
                "counts in all workers together, and set rate_limit = 0"
            )
            warn([text], inspect.unwrap(task.run))
