"""Reads the text of rules files, and finds all mistakes in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from celery_throttle.errors import (
    ConfigurationError,
    KeyTemplateError,
    LimitValueError,
    RulesError,
    ThrottleError,
    UnknownLimitError,
    nearest,
    shown,
)
from celery_throttle.limits.cost import ArgumentCost, to_millionths
from celery_throttle.limits.key import LimitRef, check_name, parse_key
from celery_throttle.limits.key_template import parse_templates
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import check_same_kind, check_weight, parse_limits
from celery_throttle.limits.rules.rules import Route, Rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

_TABLES = ("limits", "weights", "routes")

#: The keys of nested tables: ``("routes", "shop.*")``.
_Path = tuple[str, ...]

_KEY = r'(?:"(?:\\.|[^"\\])*"|\'[^\']*\'|[\w-]+)'
_HEAD = re.compile(rf"\s*(\[?)\[?\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*[\]=]")


def read_rules(text: str, source: str, code: Mapping[str, Limits] | None = None) -> Rules:
    """Read the text of a rules file: TOML with the tables ``limits``, ``weights`` and ``routes``.

    Empty text is a mistake, since an editor or a full disk may have truncated the file; a file
    without rules needs a comment. ``source``: the name of the file, for messages. ``code``: the
    limits of the code, to which the file may refer; None if they are unknown: then any limit that
    the file does not define is taken for one of them.

    Raises:
        RulesError: there are mistakes; it has all of them, each with its line.
    """
    try:
        reader = _Reader(_parse_toml(text, source), code)
    except RecursionError:
        raise RulesError(source, [(None, "tables or lists are nested too deeply")]) from None
    rules = reader.read()
    if reader.mistakes:
        raise RulesError(source, reader.locate_mistakes(text))
    return rules


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    if not text.strip():
        empty = "the file is empty; allowed, if it has no rules: a comment"
        raise RulesError(source, [(None, empty)])
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or a number with thousands of digits
        problem, _, position = str(error).partition(" (at ")
        if not position:
            raise RulesError(source, [(None, f"the file is not TOML: {problem}")]) from None
        found = re.match(r"line (\d+)", position)
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        wrong = shown(text.split("\n")[line - 1].strip(" \t\r"))
        twice = problem.startswith("Cannot ")  # overwrite, declare twice, redefine
        allowed = "each name once" if twice else 'rows such as stripe = "100/s"'
        mistake = f"{wrong} is not TOML: {problem}; allowed: {allowed}"
        raise RulesError(source, [(line, mistake)]) from None
    return tables


def _find_lines(lines: list[str]) -> dict[_Path, int]:
    """Return the lines, from 1, of the tables and of the rows that begin a line.

    ``tomllib`` tells the lines of syntax errors only, and no maintained library those of values.
    """
    found: dict[_Path, int] = {}
    table: _Path = ()
    for number, line in enumerate(lines, 1):
        match = _HEAD.match(line)
        if match:
            keys = tuple(map(_unquote, re.findall(_KEY, match[2])))
            path = keys if match[1] else (*table, *keys)
            table = path if match[1] else table
            found.setdefault(path[:1], number)
            found.setdefault(path, number)
    return found


def _line_of(item: object, lines: list[str], row: int) -> int:
    """Return the line of a text in a list that begins in the line ``row``; else ``row``."""
    if not isinstance(item, str):
        return row
    quoted = (f'"{item}"', f"'{item}'")
    rest = enumerate(lines[row - 1 :], row)
    return next((number for number, line in rest if any(text in line for text in quoted)), row)


def _unquote(key: str) -> str:
    return str(tomllib.loads(f"key = {key}")["key"]) if key[0] in "\"'" else key


class _Entry(NamedTuple):
    """A row of a table."""

    path: _Path
    text: str  #: a name, a name and key, or the task of a route
    value: Any


class _Reader:
    """Reads a document, and collects mistakes with the paths of their values."""

    def __init__(self, document: Mapping[str, Any], code: Mapping[str, Limits] | None) -> None:
        #: The path of each mistake, the item of a list that it is in, if any, and what is wrong.
        self.mistakes: list[tuple[_Path, Any, str]] = []
        self._code = code
        self._entries: dict[str, list[_Entry]] = {name: [] for name in _TABLES}
        for name, table in document.items():
            with self._collect_mistakes((name,)):
                _check_table(name, table)
                self._entries[name] = list(self._flatten((name,), table))
        # A limit with a mistake is defined all the same: to refer to it is not another mistake.
        written = {entry.text for entry in self._entries["limits"] if ":" not in entry.text}
        self._names = {*written, *(code or ())}

    def read(self) -> Rules:
        """Return the rules that have no mistake."""
        weights = {ref: weight for _, ref, weight in self._read_refs("weights", _parse_weight)}
        return Rules(self._read_limits(), weights, self._read_routes())

    def _flatten(self, path: _Path, table: Mapping[str, Any]) -> Iterator[_Entry]:
        """Yield the rows of a table; a name with a dot but no quotes is a mistake."""
        for key, value in table.items():
            inner = (*path, key)
            if isinstance(value, Mapping) and value and not _is_route(inner, value):
                yield from self._flatten(inner, value)
                continue
            _, *names = map(str, inner)
            text = ".".join(names)
            if len(names) > 1:
                of_key = "" if path[0] == "routes" else f', or "{":".join(names)}" for a key'
                advice = f'write "{text}"{of_key}'
                self.mistakes.append((inner, None, f"{text} has a dot, but no quotes; {advice}"))
            yield _Entry(inner, text, value)

    def _read_limits(self) -> dict[LimitRef, Limits]:
        limits: dict[LimitRef, Limits] = {}
        known = {**(self._code or {})}
        for entry, ref, own in self._read_refs("limits", parse_limits):
            with self._collect_mistakes(entry.path):
                check_same_kind(entry.text, own, known.setdefault(ref.name, own))
            limits[ref] = own
        return limits

    def _read_refs(
        self, table: str, parse: Callable[[Any, str], T]
    ) -> Iterator[tuple[_Entry, LimitRef, T]]:
        """Yield the limits and keys of a table, and the value of each. Keys come last."""
        first: dict[LimitRef, str] = {}
        for entry in sorted(self._entries[table], key=lambda entry: ":" in entry.text):
            ref, value = self._read_ref(entry, first), self._parse(entry, parse)
            if ref is not None and value is not None:
                yield entry, ref, value

    def _read_ref(self, entry: _Entry, first: dict[LimitRef, str]) -> LimitRef | None:
        """Return the limit and key of a row; ``first`` has those of earlier rows, as written."""
        with self._collect_mistakes(entry.path):
            ref = _parse_ref(entry.text)
            self._check_known(ref.name)
            if first.setdefault(ref, entry.text) != entry.text:
                raise LimitValueError(
                    f"{entry.text!r} is the same key as {first[ref]!r}; allowed: one of them"
                )
            return ref
        return None

    def _read_routes(self) -> dict[str, Route]:
        parsed = {
            entry.text: self._parse(entry, self._parse_route) for entry in self._entries["routes"]
        }
        return {task: route for task, route in parsed.items() if route is not None}

    def _parse_route(self, written: Any, task: str) -> Route:
        where = f"route {task!r}"
        route = Route.of(written, where)
        try:
            templates = parse_templates(route.limits)
            for template in templates:
                self._check_known(template.name)
            _check_cost(route.cost, {template.name for template in templates})
        except ThrottleError as error:
            raise type(error)(f"{where}: {error}") from None
        return replace(route, limits=tuple(template.text for template in templates))

    def _parse(self, entry: _Entry, parse: Callable[[Any, str], T]) -> T | None:
        """Parse a value; None if there are mistakes. Those in an item of a list have its line."""
        before = len(self.mistakes)
        for item in entry.value if isinstance(entry.value, list) else ():
            with self._collect_mistakes(entry.path, item):
                parse(item, entry.text)
        if len(self.mistakes) == before:
            with self._collect_mistakes(entry.path):
                return parse(entry.value, entry.text)
        return None

    def _check_known(self, name: str) -> None:
        if self._code is not None and name not in self._names:
            raise UnknownLimitError(
                f"limit {name!r} is defined neither in this file nor in the code; "
                f"{nearest(name, self._names)}"
            )

    @contextmanager
    def _collect_mistakes(self, path: _Path, item: Any = None) -> Iterator[None]:
        """Suppress an error of ours, and note it as a mistake."""
        try:
            yield
        except ThrottleError as error:
            self.mistakes.append((path, item, str(error)))

    def locate_mistakes(self, text: str) -> list[tuple[int | None, str]]:
        """Return the mistakes with their lines: those of their items, rows or tables."""
        lines = text.split("\n")
        found = _find_lines(lines)
        located: list[tuple[int | None, str]] = []
        for path, item, mistake in self.mistakes:
            sizes = range(len(path), 0, -1)
            row = next((found[path[:size]] for size in sizes if path[:size] in found), 1)
            located.append((_line_of(item, lines, row), mistake))
        return sorted(located)


def _is_route(path: _Path, table: Mapping[str, Any]) -> bool:
    """Return whether a table is a route, and not a part of a name without quotes."""
    # A key with a dot was in quotes, so it is the whole name of a task.
    return path[0] == "routes" and ("limits" in table or "." in path[-1])


def _check_table(name: str, table: Any) -> None:
    if name not in _TABLES:
        raise ConfigurationError(
            f"{name!r} is not a table of rules; {nearest(name.removeprefix('throttle_'), _TABLES)}"
        )
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name!r} is {shown(table)}; allowed: the table [{name}]")


def _parse_ref(text: str) -> LimitRef:
    name, separator, key = text.partition(":")
    check_name(name)
    if not separator:
        return LimitRef(name, None)
    if "{" in key or "}" in key:
        raise KeyTemplateError(
            f"{shown(text)} has braces; allowed: the value of a key, such as '{name}:42'"
        )
    return LimitRef(name, parse_key(key))


def _check_cost(cost: Any, names: set[str]) -> None:
    """Raise LimitError unless this is the cost of a route for the limits of these names."""
    if isinstance(cost, Mapping):
        unknown = next((name for name in cost if name not in names), None)
        if unknown is not None:
            raise LimitValueError(f"cost names {shown(unknown)}, which is no limit of the route")
    for each in cost.values() if isinstance(cost, Mapping) else (cost,):
        if each is not None and ArgumentCost.parse(each) is None:
            to_millionths(each)


def _parse_weight(written: Any, text: str) -> int:
    check_weight(text, written)
    return int(written)
