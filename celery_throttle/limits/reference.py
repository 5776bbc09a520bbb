"""References to limits as callers write them: a name, or the handle of a limit or key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import check_name


class HasRef(Protocol):
    """A handle, such as ``limiter["mail", 42]``.

    :meta private:
    """

    @property
    def ref(self) -> LimitRef:
        """The name of the limit, and the encoded key."""


#: A name, a handle such as ``limiter["mail", 42]``, or a parsed reference.
RefLike = str | HasRef | LimitRef

#: What stands in the brackets of ``limiter[...]``: a name, or a name and a key.
ItemLike = str | tuple[str, Any]


def parse_ref(item: RefLike) -> LimitRef:
    """Parse a reference as a caller writes it; else LimitError, or KeyValueError for its key."""
    if isinstance(item, LimitRef):
        return item
    ref = getattr(item, "ref", None)
    if isinstance(ref, LimitRef):
        return ref
    if isinstance(item, tuple):
        written = ", ".join(map(shown, item))
        raise LimitValueError(f"{shown(item)} is not a limit; write limiter[{written}] for a key")
    if isinstance(item, str) and ":" in item:
        name, _, key = item.partition(":")
        raise LimitSyntaxError(
            f"{shown(item)} is not a name; write limiter[{shown(name)}, {shown(key)}] for a key"
        )
    return LimitRef(check_name(item), None)  # type: ignore[arg-type]  # it checks the type


def parse_item(item: ItemLike) -> LimitRef:
    """Parse what stands in the brackets of ``limiter[...]``: a name, or a name and a key."""
    if isinstance(item, LimitRef) or not isinstance(item, tuple):
        return parse_ref(item)
    if len(item) != 2:  # noqa: PLR2004  # name and key
        raise LimitValueError(f"{shown(item)} is not a limit; allowed: a name, or name and key")
    name, key = item
    return LimitRef(check_name(name), encode_key(key))


def parse_refs(items: Iterable[RefLike]) -> list[LimitRef]:
    """Parse references as a caller writes them; a single name or handle is one reference."""
    single = isinstance(items, (str, LimitRef)) or hasattr(items, "ref")
    refs = [parse_ref(items)] if single else [parse_ref(item) for item in items]  # type: ignore[arg-type]  # see above
    if not refs:
        raise LimitValueError("no limit was named; allowed: one or more")
    if len(set(refs)) != len(refs):
        raise LimitValueError(f"the same limit and key is named twice: {', '.join(map(str, refs))}")
    return refs
