"""Reference: a limit as a caller may write it, by its name, or by its name and key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import check_name

#: A name, or a pair of name and key.
Reference = str | tuple[str, Any] | LimitRef


def is_plain(limits: Iterable[Reference]) -> bool:
    """Whether a dict can tell them from others: it takes 1 and True for the same key.

    And a reference, whose key is encoded, for a pair.
    """
    for item in limits:
        if type(item) is tuple and len(item) == 2:  # noqa: PLR2004  # name and key
            if type(item[0]) is not str or type(item[1]) is not str:
                return False
        elif type(item) is not str:
            return False
    return True


def as_ref(item: Reference) -> LimitRef:
    """A reference as a caller may write it."""
    if isinstance(item, LimitRef):
        return item
    if isinstance(item, tuple):
        if len(item) != len(("name", "key")):
            raise LimitValueError(f"{shown(item)} is no reference: give a name, or name and key")
        name, key = item
        return LimitRef(check_name(name), encode_key(key))
    if isinstance(item, str) and ":" in item:
        name, _, key = item.partition(":")
        raise LimitSyntaxError(
            f"{shown(item)} is no name; allowed: a name, or a pair such as {(name, key)!r}"
        )
    return LimitRef(check_name(item), None)


def keyed(name: str, key: Any) -> LimitRef:
    """The limit of a name, or its key if that is not None."""
    return as_ref(name if key is None else (name, key))


def as_refs(items: Iterable[Reference]) -> list[LimitRef]:
    """References as a caller may write them; a single text is one name, not its letters."""
    refs = [as_ref(items)] if isinstance(items, str) else [as_ref(item) for item in items]
    if not refs:
        raise LimitValueError("no limit was named: give at least one")
    if len(set(refs)) != len(refs):
        raise LimitValueError(f"the same limit and key is named twice: {', '.join(map(str, refs))}")
    return refs
