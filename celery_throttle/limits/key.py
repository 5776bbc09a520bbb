"""Names and keys of limits: references to a limit and key, and the encoding of keys.

An encoded key consists of parts, separated by ``:``. A part consists of:

- text: ASCII letters, digits and ``_.-@`` as they are, every other byte of its UTF-8 as ``%XX``;
- ``!word`` for a value without text: ``!none``, ``!true``, ``!false``, ``!empty`` (empty text);
- ``!type=text`` for a value of another type: ``!bytes=%00``, ``!float=1.5``, ``!enum=Plan.GOLD``.

Text never contains the characters that mark the structure, so two values share a key only if they
have the same text and type. The one exception is deliberate: the number 42 and the text ``"42"``
are one key, because JSON and URLs turn the one into the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes
from uuid import UUID

from celery_throttle.errors import KeyValueError, LimitSyntaxError, LimitValueError, shown

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_MAX_KEY_LENGTH = 80
_DIGEST_BYTES = 16

_PLAIN = re.compile(r"[A-Za-z0-9_.\-@]*")
_ESCAPES = [chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256)]


class LimitRef(NamedTuple):
    """The name of a limit and an encoded key.

    Attributes:
        name: The name of the limit.
        key: The key, encoded as text; None for the limit itself.
    """

    name: str
    key: str | None


def encode_key(value: Any) -> str:
    """Encode a key: a value, or a tuple of values, one for each part.

    The result contains ASCII letters, digits and ``_.-@%!=:#`` only. A result of more than 80
    characters is replaced by ``#`` and the 32 hex digits of its BLAKE2b digest.

    Raises:
        KeyValueError: a value is not str, int, None, bool, bytes, float, Decimal, UUID, date,
            datetime or Enum, or the tuple is empty.
    """
    parts = value if isinstance(value, tuple) else (value,)
    if not parts:
        raise KeyValueError("() cannot be a key; allowed: one part or more")
    return join_parts(map(encode_part, parts))


def join_parts(parts: Iterable[str]) -> str:
    """Join encoded parts to a key; a long key is replaced by its digest."""
    key = ":".join(parts)
    if len(key) <= _MAX_KEY_LENGTH:
        return key
    return "#" + blake2b(key.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()


def parse_key(text: str) -> str:
    """Parse a key as people write it, ``"42"``, or encoded, as messages and commands show it.

    Parts are separated by ``:``. In each, ``%XX`` is a byte, as in URLs, and every character that
    needs to be escaped is. Thus an encoded key is returned as it is.

    Raises:
        KeyValueError: a part is empty.
    """
    parts = text.split(":")
    if "" in parts:
        raise KeyValueError(
            f"a part of key {shown(text)} is empty; allowed: text, or '!empty' for empty text"
        )
    return text if _DIGEST.fullmatch(text) else join_parts(map(_parse_part, parts))


def format_key(key: str) -> str:
    """Return an encoded key as people write it; :func:`parse_key` returns the encoded key again.

    A part that people could not read or write otherwise stays encoded.
    """
    return ":".join(map(_format_part, key.split(":")))


def ref_text(ref: LimitRef) -> str:
    """Return a limit, or one key of it, as people write it: ``mail``, ``mail:42``."""
    return ref.name if ref.key is None else f"{ref.name}:{format_key(ref.key)}"


def _format_part(part: str) -> str:
    text = unquote_to_bytes(part).decode("utf-8", "replace")
    is_safe = text.isprintable() and not {*":%"} & {*text} and _parse_part(text) == part
    return text if is_safe else part


def _parse_part(text: str) -> str:
    if text in _WORDS:
        return text
    mark = next((mark for _, mark, _ in _TYPED if text.startswith(mark)), "")
    return mark + _escape(unquote_to_bytes(text[len(mark) :].encode("utf-8", "surrogatepass")))


def _escape(text: str | bytes) -> str:
    if isinstance(text, bytes):
        return "".join([_ESCAPES[byte] for byte in text])
    if _PLAIN.fullmatch(text):
        return text
    # Lone surrogates are not valid UTF-8, but Python text may contain them (file names, bad JSON).
    return _escape(text.encode("utf-8", "surrogatepass"))


def _enum_text(member: Enum) -> str:
    # An unnamed combination of flags has no name, only a value.
    return f"{type(member).__qualname__}.{member.name or member.value}"


# The first matching type is used; datetime comes before its base class date. Methods are called on
# the type, because a subclass (such as numpy's float64) may print itself differently.
_TYPED: tuple[tuple[type, str, Callable[[Any], str | bytes]], ...] = (
    (bytes, "!bytes=", bytes),
    (float, "!float=", float.__repr__),
    (Decimal, "!decimal=", Decimal.__str__),
    (UUID, "!uuid=", UUID.__str__),
    (datetime, "!datetime=", datetime.isoformat),
    (date, "!date=", date.isoformat),
    (Enum, "!enum=", _enum_text),
)

_WORDS = ("!none", "!true", "!false", "!empty")
_DIGEST = re.compile(rf"#[0-9a-f]{{{2 * _DIGEST_BYTES}}}")


def encode_part(value: Any) -> str:
    """Encode one part of a key. Raises as :func:`encode_key`."""
    if isinstance(value, str):
        return _escape(str.__str__(value)) or "!empty"
    if value is None:
        return "!none"
    if isinstance(value, bool):
        return "!true" if value else "!false"
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError as error:  # Python converts at most some thousand digits to text
            raise KeyValueError(f"an int cannot be (part of) a key: {error}") from None
    for kind, mark, text in _TYPED:
        if isinstance(value, kind):
            return mark + _escape(text(value))
    raise KeyValueError(
        f"{shown(value)} is a {type(value).__name__}, which cannot be (part of) a key; "
        "allowed: str, int, None, bool, bytes, float, Decimal, UUID, date, datetime and Enum"
    )


def check_name(name: str) -> str:
    """Return ``name`` if it is allowed for a limit; raise LimitSyntaxError otherwise."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise LimitSyntaxError(
        f"{shown(name)} cannot name a limit; allowed: up to 100 ASCII letters, digits and "
        "'_', '.', '-', of which the first is a letter or '_'"
    )


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
        twice = next(ref for ref in refs if refs.count(ref) > 1)
        raise LimitValueError(f"{ref_text(twice)!r} is named twice; allowed: each limit once")
    return refs
