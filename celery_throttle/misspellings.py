"""Names of attributes and settings that resemble ours: nothing would tell that they do nothing."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

#: The first word of all our names.
OURS = "throttle"

#: How alike two names are at least, from 0 to 1: as a whole, in their first words, and in the rest.
_WHOLE, _FIRST, _REST = 0.9, 0.85, 0.75

#: What people write after "throttle_", and what of ours means that; "" is "throttle" alone.
_ATTRIBUTES = {
    **dict.fromkeys(("limit", "limits", "rate", "rates", "rate_limit", "key"), ""),
    **dict.fromkeys(("unit", "units", "weight", "tokens"), "cost"),
    **dict.fromkeys(("wait", "timeout"), "max_wait"),
    **dict.fromkeys(("on_wait", "on_timeout"), "on_max_wait"),
}
_SETTINGS = {
    **dict.fromkeys(("", "limit", "rate", "rates", "rate_limit", "rate_limits"), "limits"),
    **dict.fromkeys(("redis", "redis_url", "server", "broker", "broker_url", "store"), "url"),
    **dict.fromkeys(("tasks", "task_routes"), "routes"),
    **dict.fromkeys(("key_prefix", "namespace"), "prefix"),
}


class ThrottleWarning(UserWarning):
    """An attribute of a task, or a setting, that has no effect, or not the one it seems to."""


class Misspelling(NamedTuple):
    """A name that is none of ours.

    Attributes:
        text: which it is, and what to write instead.
        certain: whether it begins with ``throttle_``: nobody else's names do.
    """

    text: str
    certain: bool


def in_task(cls: type, base: type) -> Iterator[Misspelling]:
    """The attributes of a task's class that resemble those of our base class."""
    known = [name for name in vars(base) if name.startswith(OURS)]
    where = f"task {getattr(cls, 'name', cls.__name__)!r}"
    for name in sorted({*dir(cls)} - {*dir(base)}):
        certain = name.startswith(f"{OURS}_")
        right = _meant(name, known, _ATTRIBUTES)
        if certain or (right and _is_option(inspect.getattr_static(cls, name), right)):
            yield Misspelling(f"{where}: attribute {_advice(name, right, known)}", certain)


def _is_option(value: Any, right: str) -> bool:
    """Whether a value may be meant for an attribute of ours; it may be the user's own, too."""
    if right == OURS:
        return isinstance(value, (str, list, tuple))
    return not callable(value) and not isinstance(value, (bool, property))


def in_settings(conf: Any, known: Collection[str]) -> Iterator[Misspelling]:
    """The settings of ``app.conf`` that resemble ours."""
    names = sorted(map(str, conf))  # which reads them, if nothing has before
    prefix = str(conf.prefix or "")  # of the namespace: "CELERY_"
    for written in names:
        spaced = bool(prefix) and written.startswith(prefix)
        read = spaced or written.islower()  # Celery reads no others
        if prefix and not read:  # a module of settings holds those of others as well
            continue
        name = written.removeprefix(prefix).lower()
        if read and name in known:
            continue
        right = name if name in known else _meant(name, known, _SETTINGS)
        certain = read and name.startswith(f"{OURS}_")
        if certain or right:
            cased = f"{prefix}{right.upper()}" if right and spaced and written.isupper() else right
            yield Misspelling(f"app.conf: setting {_advice(written, cased, known)}", certain)


def _meant(name: str, known: Collection[str], synonyms: Mapping[str, str]) -> str | None:
    """The name of ours that somebody may have meant."""
    alike = get_close_matches(name, known, 1, _WHOLE)
    if alike:
        return alike[0]
    first, _, rest = name.partition("_")
    if not get_close_matches(first, [OURS], 1, _FIRST):
        return None
    rests = {one.removeprefix(OURS).removeprefix("_"): one for one in known}
    alike = get_close_matches(synonyms.get(rest, rest), rests, 1, _REST)
    return rests[alike[0]] if alike else None


def _advice(name: str, right: str | None, known: Iterable[str]) -> str:
    what = f"write {right!r}" if right else f"allowed: {', '.join(map(repr, known))}"
    return f"{name!r} has no effect; {what}"


def warn(misspellings: Iterable[Misspelling], place: Any = None) -> None:
    """Warn of misspellings; ``place``: the function above which they are written, if one is."""
    code = getattr(place, "__code__", None)
    where = ("app.conf", 0) if code is None else (code.co_filename, code.co_firstlineno)
    for one in misspellings:
        warnings.warn_explicit(one.text, ThrottleWarning, *where)
