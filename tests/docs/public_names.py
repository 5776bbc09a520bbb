"""The public names of the package, found by one rule.

Public are

* the names in ``__all__`` of ``celery_throttle`` and of its packages,
* the names of a module, such as ``celery_throttle.testing``, from which code on a page or in the
  README imports: those in its ``__all__``, or else all that it defines,
* the names that a page of the reference shows,
* the classes of this package that the annotations of public names mention: what a public method
  returns or takes is public, too,
* of a public class its attributes without a leading underscore, and its special methods with a
  docstring; those that it inherits from classes of this package included. A field of a dataclass
  is described once, by the class that defines it.

Not public is a name whose docstring has the field ``:meta private:``, an attribute that such a
class was the first to define, and what overrides one of these. Nor is the constructor of a class
that a page shows as ``autoclass:: Name()``: other public names return its instances.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import celery_throttle
from tests.docs.pages import DOCS
from tests.programs import ROOT

PACKAGE = celery_throttle.__name__

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_IMPORT = re.compile(rf"\bfrom ({PACKAGE}[\w.]*) import ")
_SHOWN = re.compile(r"auto(?:class|exception|function)::\s+([\w.]+)")
_WITHOUT_CONSTRUCTOR = re.compile(r"autoclass::\s+([\w.]+)\(\)")
_PRIVATE = ":meta private:"


class PublicName(NamedTuple):
    """A public name."""

    name: str  #: from the module on: ``celery_throttle.limiter.limiter.Limiter.acquire``
    value: Any
    owner: type | None = None  #: the class of an attribute
    is_field: bool = False  #: an attribute that the docstring of the class describes

    def __str__(self) -> str:
        return self.name


def find_all() -> dict[str, PublicName]:
    """Return all public names."""
    found: dict[str, PublicName] = {}
    queue = [*_exported(), *_of_imported_modules(), *_shown()]
    while queue:
        name, value = queue.pop()
        if inspect.isclass(value) or inspect.isfunction(value):
            name = f"{value.__module__}.{value.__qualname__}"
        if name in found or _is_private(value):
            continue
        found[name] = PublicName(name, value)
        mentioned = [*_mentioned(value)]
        if inspect.isclass(value):
            for one in _attributes(value):
                found[one.name] = one
                mentioned += [] if one.is_field else _mentioned(one.value)
        queue += ((f"{one.__module__}.{one.__qualname__}", one) for one in mentioned)
    return found


def classes_without_constructor() -> set[str]:
    """Return the names of the classes that pages show without their constructor."""
    pages = (path.read_text(encoding="utf-8") for path in (DOCS / "reference").rglob("*.md"))
    return {name for page in pages for name in _WITHOUT_CONSTRUCTOR.findall(page)}


def _exported() -> Iterator[tuple[str, Any]]:
    names = [PACKAGE]
    names += (
        one.name
        for one in pkgutil.iter_modules(celery_throttle.__path__, f"{PACKAGE}.")
        if one.ispkg
    )
    for name in names:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", ()):
            yield f"{name}.{each}", getattr(module, each)


def _of_imported_modules() -> Iterator[tuple[str, Any]]:
    names = set()
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        names |= {*_IMPORT.findall(text)}
    for name in names:
        module = importlib.import_module(name)
        own = [each for each, value in vars(module).items() if _is_defined_in(value, module)]
        for each in getattr(module, "__all__", own):
            if not each.startswith("_"):
                yield f"{name}.{each}", getattr(module, each)


def _is_defined_in(value: Any, module: types.ModuleType) -> bool:
    is_kind = inspect.isclass(value) or inspect.isfunction(value)
    return is_kind and value.__module__ == module.__name__


def _shown() -> Iterator[tuple[str, Any]]:
    for path in (DOCS / "reference").rglob("*.md"):
        for name in _SHOWN.findall(path.read_text(encoding="utf-8")):
            module, _, each = name.rpartition(".")
            yield name, getattr(importlib.import_module(module), each)


def _is_private(value: Any) -> bool:
    return _PRIVATE in (getattr(value, "__doc__", None) or "")


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == PACKAGE


def _attributes(cls: type) -> Iterator[PublicName]:
    """Yield the public attributes of a class."""
    bases = [base for base in cls.__mro__ if _is_ours(base)]
    names = {each: None for base in bases for each in (*inspect.get_annotations(base), *vars(base))}
    for each in names:
        value = inspect.getattr_static(cls, each, None)
        if (each.startswith("_") and not _is_special(each, value)) or _is_plumbing(bases, each):
            continue
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if _is_private(value) or inspect.isclass(value):
            continue
        is_field = not (inspect.isfunction(value) or _is_property(value))
        if is_field and is_dataclass(cls) and each not in inspect.get_annotations(cls):
            continue
        if is_field and not any(each in inspect.get_annotations(base) for base in bases):
            continue  # no annotation: an attribute of a base of another project
        owner = _first_public_owner(cls, each)
        yield PublicName(f"{owner.__module__}.{owner.__qualname__}.{each}", value, owner, is_field)


def _is_plumbing(bases: list[type], attribute: str) -> bool:
    """Whether an attribute, or one that it overrides, is private, or of a private base class."""
    owners = [
        base
        for base in bases
        if attribute in vars(base) or attribute in inspect.get_annotations(base)
    ]
    overridden = (inspect.getattr_static(base, attribute, None) for base in owners)
    return _is_private(owners[-1]) or any(map(_is_private, overridden))


def _is_special(name: str, value: Any) -> bool:
    """Whether an attribute is a special method that says what it does."""
    is_ours = inspect.isfunction(value) and value.__module__.startswith(PACKAGE)
    return is_ours and name.endswith("__") and bool(value.__doc__)


def _is_property(value: Any) -> bool:
    return isinstance(value, property) or type(value).__name__ == "cached_property"


def _first_public_owner(cls: type, attribute: str) -> type:
    """Return the class whose page has an attribute: the farthest public base with the same one."""
    exported = {getattr(celery_throttle, name) for name in celery_throttle.__all__}
    value = inspect.getattr_static(cls, attribute, None)
    owners = [
        base
        for base in cls.__mro__
        if base in exported and inspect.getattr_static(base, attribute, None) is value
    ]
    return owners[-1] if owners and value is not None else cls


def _mentioned(value: Any) -> Iterator[type]:
    """Yield the classes of this package in the annotations of a function or class."""
    if isinstance(value, property):
        value = value.fget
    elif type(value).__name__ == "cached_property":
        value = value.func
    if inspect.isclass(value) and f"{value.__module__}.{value.__qualname__}" not in (
        classes_without_constructor()
    ):
        yield from _mentioned(inspect.getattr_static(value, "__init__", None))
    if inspect.isclass(value):
        hints = _hints(value)
        hints = {each: hint for each, hint in hints.items() if not each.startswith("_")}
    elif inspect.isfunction(value):
        hints = _hints(value)
    else:
        return
    for hint in hints.values():
        yield from _classes_in(hint)


def _hints(value: Any) -> dict[str, Any]:
    """Return the annotations, with names that are imported for type checkers only."""
    module = importlib.import_module(value.__module__)
    names = {**vars(typing), **_imports_for_types(module)}
    own = inspect.get_annotations(value)
    if inspect.isclass(value):
        own = {
            each: hint
            for base in reversed(value.__mro__)
            if _is_ours(base) and not _is_private(base)
            for each, hint in inspect.get_annotations(base).items()
        }
    scope = {**names, **vars(module)}
    return {each: _evaluated(hint, scope) for each, hint in own.items()}


def _evaluated(hint: Any, scope: dict[str, Any]) -> Any:
    try:
        return eval(hint, scope) if isinstance(hint, str) else hint  # noqa: S307  # our own code
    except NameError:
        return None  # a base class has it, from another module


def _imports_for_types(module: types.ModuleType) -> dict[str, Any]:
    names: dict[str, Any] = {}
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            try:
                source = importlib.import_module(node.module)
            except ImportError:
                continue
            for alias in node.names:
                names[alias.asname or alias.name] = getattr(source, alias.name, Any)
    return names


def _classes_in(hint: Any) -> Iterator[type]:
    for part in typing.get_args(hint):
        yield from (one for each in _parts(part) for one in _classes_in(each))
    if inspect.isclass(hint) and _is_ours(hint) and not hint.__name__.startswith("_"):
        yield hint


def _parts(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [part]
