"""Key templates: which limit, and which key of it, the arguments of a call select.

Users write ``"mail:{tenant_id}"``, a :class:`KeyTemplate`. An :class:`ArgumentReader` reads the
value of ``tenant_id`` from a task's arguments, and the template encodes it as a key, such as
``LimitRef("mail", "42")``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature, ismethod, signature, unwrap
from types import MappingProxyType
from typing import Any

from celery_throttle.errors import (
    ConfigurationError,
    KeyTemplateError,
    KeyValueError,
    LimitError,
    shown,
)
from celery_throttle.limits.key import LimitRef, RefLike, check_name, encode_part, join_parts
from celery_throttle.limits.requirement import MAX_LIMITS_PER_TASK, check_ref_count

_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})

_COLLECTING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


#: An argument in a part of a key: ``{name}``; ``{name?}`` and ``{name=text}`` may be missing.
_PART = re.compile(r"\{(?P<name>\w+)(?:(?P<optional>\?)|=(?P<default>[^{}]+))?\}")

#: In place of a default: without the argument, the limit does not apply.
_NO_LIMIT = ""


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A limit and the template of a key: ``"stripe"``, ``"mail:{tenant_id}"``, ``"mail:eu"``.

    Made by :meth:`parse` from ``text``. The ``parts`` of the key are encoded, with None in place of
    an argument; ``arguments`` are the names of these.

    ``{tenant_id?}``: if the argument is None or missing, the limit does not apply to the call.
    ``{tenant_id=none}``: then this part of the key is ``none``. ``fallbacks`` has these parts,
    encoded, empty for no limit; None for an argument that must be given, and may be None.
    """

    text: str
    name: str
    parts: tuple[str | None, ...]
    arguments: tuple[str, ...] = ()
    fallbacks: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, item: RefLike) -> KeyTemplate:
        """Return the template of a text, or of a handle, whose key is fixed.

        Raises as :meth:`parse`.
        """
        ref = getattr(item, "ref", None)
        if not isinstance(ref, LimitRef):
            return cls.parse(item)  # type: ignore[arg-type]  # it checks the type
        parts = () if ref.key is None else (ref.key,)
        return cls(":".join((ref.name, *parts)), ref.name, parts)

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Parse a name and the parts of a key; each part is ``{argument}`` or plain text.

        Raises:
            LimitSyntaxError: the name is not allowed for a limit.
            KeyTemplateError: a part is empty, or has braces but is not one argument.
        """
        if not isinstance(text, str):
            raise KeyTemplateError(f"{shown(text)} is not text; allowed: such as 'mail:{{tenant}}'")
        name, *templates = text.split(":")
        parts: list[str | None] = []
        arguments: list[tuple[str, str | None]] = []
        for template in templates:
            if template and "{" not in template and "}" not in template:
                parts.append(encode_part(template))
                continue
            match = _PART.fullmatch(template)
            if match and match["name"].isidentifier():
                parts.append(None)
                default = match["default"]
                fallback = _NO_LIMIT if match["optional"] else default and encode_part(default)
                arguments.append((match["name"], fallback))
            else:
                raise KeyTemplateError(
                    f"{shown(template)} in {shown(text)} is not a part of a key; allowed: one "
                    "argument, such as '{tenant_id}', or text without braces"
                )
        names, fallbacks = zip(*arguments, strict=True) if arguments else ((), ())
        return cls(text, check_name(name), tuple(parts), names, fallbacks)

    @property
    def optional(self) -> dict[str, None]:
        """The arguments that a call may lack, with None, by which :meth:`ref` knows it."""
        both = zip(self.arguments, self.fallbacks, strict=True)
        return {name: None for name, fallback in both if fallback is not None}

    def ref(self, values: Sequence[Any] = ()) -> LimitRef | None:
        """Return the limit and key for the values of ``arguments``; None if it does not apply.

        Raises:
            KeyValueError: a value cannot be a part of a key.
        """
        if len(values) != len(self.arguments):
            raise KeyValueError(
                f"{shown(self.text)} was given {len(values)} values; allowed: {len(self.arguments)}"
            )
        if not self.parts:
            return LimitRef(self.name, None)
        given = list(zip(values, self.fallbacks, strict=True))
        if any(value is None and fallback == _NO_LIMIT for value, fallback in given):
            return None
        encoded = (
            encode_part(value) if value is not None or fallback is None else fallback
            for value, fallback in given
        )
        parts = (next(encoded) if part is None else part for part in self.parts)
        return LimitRef(self.name, join_parts(parts))


def parse_templates(spec: Any) -> tuple[KeyTemplate, ...]:
    """Parse the limits of a task or a route as users write them: a text, or a list of texts.

    A handle such as ``throttle["mail", 42]`` stands for itself.

    Raises:
        ConfigurationError: ``spec`` is neither.
        LimitError: a text is wrong, there is none, or one comes twice; or there are more than 100.
    """
    is_single = isinstance(spec, str) or hasattr(spec, "ref")
    if not (is_single or isinstance(spec, (list, tuple))):
        raise ConfigurationError(
            f"limits {shown(spec)} cannot be read: give a name or a list of names"
        )
    items = [spec] if is_single else list(spec)
    check_ref_count(items, MAX_LIMITS_PER_TASK)
    templates = tuple(map(KeyTemplate.of, items))
    if not templates:
        raise LimitError(f"{shown(spec)} names no limit; allowed: a name, or a list of names")
    if len({template.text for template in templates}) != len(templates):
        raise LimitError(f"{shown(spec)} names the same limit twice")
    return templates


def signature_of_calls(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function as its callers see it; of a method without ``self``.

    A decorator that passes all arguments on (``*args, **kwargs``) is called with those of the
    function that it wraps. One that names its arguments may pass others on, such as a session.

    Raises:
        TypeError, ValueError: the function does not say; see :func:`inspect.signature`.
    """
    called = unwrap(function.__func__ if ismethod(function) else function, stop=_names_arguments)
    found = signature(called, follow_wrapped=not hasattr(called, "__wrapped__"))
    parameters = list(found.parameters.values())
    if ismethod(function) and parameters and parameters[0].kind not in _COLLECTING:
        parameters = parameters[1:]
    return found.replace(parameters=parameters)


def _names_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function names each of its arguments; False if it does not say."""
    try:
        found = signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(one.kind not in _COLLECTING for one in found)


@dataclass(frozen=True, slots=True)
class _Argument:
    """Where a call passes an argument. ``default`` is ``Parameter.empty`` if there is none."""

    name: str
    position: int | None = None
    by_keyword: bool = True
    default: Any = Parameter.empty


@dataclass(frozen=True, slots=True)
class ArgumentReader:
    """Reads arguments, by name, from the ``args`` and ``kwargs`` of a call.

    Made once for each task by :meth:`for_signature`, so that :meth:`read` need not bind a
    signature. ``function`` is for messages: ``"task 'shop.charge'"``.
    """

    function: str
    _arguments: tuple[_Argument, ...]

    @classmethod
    def for_signature(
        cls,
        sig: Signature,
        names: Iterable[str],
        function: str,
        defaults: Mapping[str, Any] = _NO_DEFAULTS,
    ) -> ArgumentReader:
        """Return a reader of the arguments ``names``; ``sig`` has no ``self`` of a bound task.

        ``defaults``: the values of arguments that a call may lack.
        KeyTemplateError if there is no such parameter, or it is ``*args`` or ``**kwargs`` itself.
        """
        single = [p for p in sig.parameters.values() if p.kind not in _COLLECTING]
        known = {
            p.name: _Argument(
                p.name,
                position=None if p.kind is Parameter.KEYWORD_ONLY else position,
                by_keyword=p.kind is not Parameter.POSITIONAL_ONLY,
                default=p.default,
            )
            for position, p in enumerate(single)
        }
        others = {p.name: p.kind for p in sig.parameters.values() if p.kind in _COLLECTING}
        takes_any = Parameter.VAR_KEYWORD in others.values()
        arguments = []
        for name in names:
            if name not in known and (name in others or not takes_any):
                allowed = ", ".join(known) or "none, it takes no single argument"
                raise KeyTemplateError(
                    f"{function} has no argument {shown(name)}; allowed: {allowed}"
                )
            argument = known.get(name) or _Argument(name)
            if argument.default is Parameter.empty and name in defaults:
                argument = replace(argument, default=defaults[name])
            arguments.append(argument)
        return cls(function, tuple(arguments))

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of the arguments in the order of ``names``, with defaults.

        KeyValueError if one is missing, or ``args`` is no sequence, or ``kwargs`` no mapping.
        """
        try:
            return tuple([self._read(argument, args, kwargs) for argument in self._arguments])
        except KeyValueError:
            raise
        except (LookupError, TypeError):  # a message may contain any JSON value
            raise KeyValueError(
                f"{self.function} was called with arguments {shown(args)} and {shown(kwargs)}; "
                "allowed: a list, and a dict by their names"
            ) from None

    def _read(self, argument: _Argument, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if argument.position is not None and argument.position < len(args):
            return args[argument.position]
        if argument.by_keyword and argument.name in kwargs:
            return kwargs[argument.name]
        if argument.default is Parameter.empty:
            raise KeyValueError(
                f"{self.function} was called without the argument {shown(argument.name)}, "
                "which gives the key or the cost of its limit; allowed: by position or by name"
            )
        return argument.default
