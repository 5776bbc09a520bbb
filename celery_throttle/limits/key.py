"""Which limit, and which key of it, a task or a call means.

Users write ``"mail:{tenant_id}"``, a :class:`Scope`. An :class:`ArgumentReader` takes the value of
``tenant_id`` from a task's arguments, :func:`encode_key` makes it a key, and the result is a
:class:`LimitRef`, such as ``LimitRef("mail", "42")``.

An encoded key is made of ``:`` between its parts and, in a part, of:

- text: ASCII letters, digits and ``_.-@`` as they are, every other byte of its UTF-8 as ``%XX``;
- ``!word`` for a value without text: ``!none``, ``!true``, ``!false``, ``!empty`` (empty text);
- ``!type=text`` for a value of another type: ``!bytes=%00``, ``!float=1.5``, ``!enum=Plan.GOLD``.

What marks the structure never appears in text, so two values share a key only if they are the same
text and type. The one exception is deliberate: the number 42 and the text ``"42"`` are one key,
because JSON and URLs turn the one into the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from inspect import Parameter, Signature
from typing import Any, NamedTuple
from uuid import UUID

from celery_throttle.errors import KeyTemplateError, KeyValueError, shown
from celery_throttle.limits.limit import check_name

_LONGEST_KEY = 80
_DIGEST_BYTES = 16

_PLAIN = re.compile(r"[A-Za-z0-9_.\-@]*")
_ESCAPES = [chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"%{byte:02X}" for byte in range(256)]


class LimitRef(NamedTuple):
    """A limit by its name, and the encoded key it is split by: None for the limit itself."""

    name: str
    key: str | None


def encode_key(value: Any) -> str:
    """Encode a value, or a tuple of values (the parts of a key), as the text that names the key.

    The text holds ASCII letters, digits and ``_.-@%!=:#`` alone. Above 80 characters it is
    replaced by ``#`` and 32 hex digits of its BLAKE2b digest.

    Raises:
        KeyValueError: if a value is not str, int, None, bool, bytes, float, Decimal, UUID, date,
            datetime or Enum, or if the tuple is empty.
    """
    parts = value if isinstance(value, tuple) else (value,)
    if not parts:
        raise KeyValueError("() cannot be a key; allowed: one part or more")
    return _join(map(_encode_part, parts))


def _join(parts: Iterable[str]) -> str:
    key = ":".join(parts)
    if len(key) <= _LONGEST_KEY:
        return key
    return "#" + blake2b(key.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()


def _escape(text: str | bytes) -> str:
    if isinstance(text, bytes):
        return "".join([_ESCAPES[byte] for byte in text])
    if _PLAIN.fullmatch(text):
        return text
    # Lone surrogates are no valid UTF-8, but Python text may hold them (a file name, broken JSON).
    return _escape(text.encode("utf-8", "surrogatepass"))


def _enum_text(member: Enum) -> str:
    # An unnamed combination of flags has no name, only a value.
    return f"{type(member).__qualname__}.{member.name or member.value}"


# The first type that fits decides, so datetime stands before date, which it is too. Methods are
# called on the type: a subclass (numpy's float64, for one) may print itself differently.
_MARKED: tuple[tuple[type, str, Callable[[Any], str | bytes]], ...] = (
    (bytes, "!bytes=", bytes),
    (float, "!float=", float.__repr__),
    (Decimal, "!decimal=", Decimal.__str__),
    (UUID, "!uuid=", UUID.__str__),
    (datetime, "!datetime=", datetime.isoformat),
    (date, "!date=", date.isoformat),
    (Enum, "!enum=", _enum_text),
)


def _encode_part(value: Any) -> str:
    if isinstance(value, str):
        return _escape(str.__str__(value)) or "!empty"
    if value is None:
        return "!none"
    if isinstance(value, bool):
        return "!true" if value else "!false"
    if isinstance(value, int):
        return _int_text(value)
    for kind, mark, text in _MARKED:
        if isinstance(value, kind):
            return mark + _escape(text(value))
    raise KeyValueError(
        f"{shown(value)} is a {type(value).__name__}, which cannot be (part of) a key; "
        "allowed: str, int, None, bool, bytes, float, Decimal, UUID, date, datetime and Enum"
    )


def _int_text(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:  # Python writes out no more than some thousand digits
        raise KeyValueError(f"an int cannot be (part of) a key: {error}") from None


@dataclass(frozen=True, slots=True)
class Scope:
    """A limit and key as users write it: ``"stripe"``, ``"mail:{tenant_id}"``, ``"mail:eu"``.

    Made by :meth:`parse`.

    Attributes:
        text: As written.
        name: The name of the limit.
        parts: The parts of the key, encoded; None where an argument goes.
        arguments: The names of these arguments, in the order of the parts.
    """

    text: str
    name: str
    parts: tuple[str | None, ...]
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read a name and the parts of a key, each one ``{argument}`` or plain text.

        Raises:
            LimitSyntaxError: if the name is none a limit can have.
            KeyTemplateError: if a part is empty, or neither one argument nor without braces.
        """
        if not isinstance(text, str):
            raise KeyTemplateError(f"{shown(text)} is not text; allowed: such as 'mail:{{tenant}}'")
        name, *templates = text.split(":")
        parts: list[str | None] = []
        arguments: list[str] = []
        for template in templates:
            if template[:1] + template[-1:] == "{}" and template[1:-1].isidentifier():
                parts.append(None)
                arguments.append(template[1:-1])
            elif template and "{" not in template and "}" not in template:
                parts.append(_encode_part(template))
            else:
                raise KeyTemplateError(
                    f"{shown(template)} in {shown(text)} is no part of a key; allowed: one "
                    "argument, such as '{tenant_id}', or text without braces"
                )
        return cls(text, check_name(name), tuple(parts), tuple(arguments))

    def ref(self, values: Sequence[Any] = ()) -> LimitRef:
        """Return the limit and key for the values of ``arguments``, in their order.

        Raises:
            KeyValueError: if a value cannot be part of a key, or their number is not that of the
                arguments.
        """
        if len(values) != len(self.arguments):
            raise KeyValueError(
                f"{shown(self.text)} was given {len(values)} values; allowed: {len(self.arguments)}"
            )
        if not self.parts:
            return LimitRef(self.name, None)
        rest = iter(values)
        parts = (_encode_part(next(rest)) if part is None else part for part in self.parts)
        return LimitRef(self.name, _join(parts))


@dataclass(frozen=True, slots=True)
class _Argument:
    """Where a call may carry one argument; a ``default`` of ``Parameter.empty`` is none."""

    name: str
    position: int | None = None
    by_keyword: bool = True
    default: Any = Parameter.empty


@dataclass(frozen=True, slots=True)
class ArgumentReader:
    """Takes some arguments, by name, from the ``args`` and ``kwargs`` of a call.

    Made once per task by :meth:`for_signature`; :meth:`read` then binds no signature.
    """

    where: str
    _arguments: tuple[_Argument, ...]

    @classmethod
    def for_signature(cls, sig: Signature, names: Iterable[str], where: str) -> ArgumentReader:
        """Find out where calls of a function carry the arguments ``names``.

        Args:
            sig: The function's signature; without ``self`` for a bound task.
            names: Names of parameters, or any names if the function takes ``**kwargs``.
            where: What the function is, for messages: ``"task 'shop.charge'"``.

        Raises:
            KeyTemplateError: if the function has no such parameter, or it is ``*args`` or
                ``**kwargs`` itself.
        """
        collecting = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        single = [p for p in sig.parameters.values() if p.kind not in collecting]
        known = {
            p.name: _Argument(
                p.name,
                position=None if p.kind is Parameter.KEYWORD_ONLY else position,
                by_keyword=p.kind is not Parameter.POSITIONAL_ONLY,
                default=p.default,
            )
            for position, p in enumerate(single)
        }
        others = {p.name: p.kind for p in sig.parameters.values() if p.kind in collecting}
        takes_any = Parameter.VAR_KEYWORD in others.values()
        arguments = []
        for name in names:
            if name not in known and (name in others or not takes_any):
                allowed = ", ".join(known) or "none, it takes no single argument"
                raise KeyTemplateError(f"{where} has no argument {shown(name)}; allowed: {allowed}")
            arguments.append(known.get(name) or _Argument(name))
        return cls(where, tuple(arguments))

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of the arguments in the order of their names, defaults included.

        Raises:
            KeyValueError: if one is not given and has no default, or these are no arguments at all.
        """
        try:
            return tuple([self._read(argument, args, kwargs) for argument in self._arguments])
        except KeyValueError:
            raise
        except (LookupError, TypeError):  # a message may hold anything
            raise KeyValueError(
                f"{self.where} was called with arguments {shown(args)} and {shown(kwargs)}; "
                "allowed: a list, and a dict by their names"
            ) from None

    def _read(self, argument: _Argument, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if argument.position is not None and argument.position < len(args):
            return args[argument.position]
        if argument.by_keyword and argument.name in kwargs:
            return kwargs[argument.name]
        if argument.default is Parameter.empty:
            raise KeyValueError(
                f"{self.where} was called without the argument {shown(argument.name)}, "
                "which tells the key or the cost of its limit; allowed: by position or by name"
            )
        return argument.default
