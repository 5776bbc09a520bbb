"""References to limits as callers write them: a name, or a pair of name and key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import check_name

#: A name, a pair of name and key, or a parsed reference.
RefLike = str | tuple[str, Any] | LimitRef


def are_cacheable(limits: Iterable[RefLike]) -> bool:
    """Whether these references are safe as parts of a dict key.

    Others are not: ``1 == True``, and a LimitRef, whose key is encoded, equals a pair.
    """
    for item in limits:
        if type(item) is tuple and len(item) == 2:  # noqa: PLR2004  # name and key
            if type(item[0]) is not str or type(item[1]) is not str:
                return False
        elif type(item) is not str:
            return False
    return True


def parse_ref(item: RefLike) -> LimitRef:
    """Parse a reference as a caller writes it; else LimitError, or KeyValueError for its key."""
    if isinstance(item, LimitRef):
        return item
    if isinstance(item, tuple):
        if len(item) != len(("name", "key")):
            raise LimitValueError(f"{shown(item)} is not a limit; allowed: a name, or name and key")
        name, key = item
        return LimitRef(check_name(name), encode_key(key))
    if isinstance(item, str) and ":" in item:
        name, _, key = item.partition(":")
        raise LimitSyntaxError(
            f"{shown(item)} is not a name; allowed: a name, or a pair such as {(name, key)!r}"
        )
    return LimitRef(check_name(item), None)


def make_ref(name: str, key: Any) -> LimitRef:
    """Return the reference to a key of a limit; key None is the limit itself."""
    return parse_ref(name if key is None else (name, key))


def parse_refs(items: Iterable[RefLike]) -> list[LimitRef]:
    """Parse references as a caller writes them; a single text is one name."""
    refs = [parse_ref(items)] if isinstance(items, str) else [parse_ref(item) for item in items]
    if not refs:
        raise LimitValueError("no limit was named; allowed: one or more")
    if len(set(refs)) != len(refs):
        raise LimitValueError(f"the same limit and key is named twice: {', '.join(map(str, refs))}")
    return refs
