"""TOML with line numbers: of syntax errors, and of all keys and items of a document.

``tomllib`` tells the lines of syntax errors only, and no maintained library those of values. The
scanner for them is short because it reads documents that ``tomllib`` has read before.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from celery_throttle.errors import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The keys of nested tables, and indexes of arrays: ``("routes", "shop.*", 1)``.
Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_STRING = (
    r'"""(?:\\.|[^\\])*?"{3,5}'  # up to two of the quotes belong to the text
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'"
)
_KEY = re.compile(rf"{_STRING}|[\w-]+", re.DOTALL)
_SCALAR = re.compile(rf"{_STRING}|[^,\]}}#\n]+", re.DOTALL)


class TomlError(ValueError):
    """Text that is not TOML. ``line``: where, from 1; None if that is unknown."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


def parse_toml(document: str) -> dict[str, Any]:
    """Parse a document.

    Raises:
        TomlError: it is empty, or not TOML.
        RecursionError: its lists are nested too deeply.
    """
    if not document.strip():
        raise TomlError("the file is empty; allowed, if it has no rules: a comment", None)
    try:
        tables: dict[str, Any] = tomllib.loads(document)
    except ValueError as error:  # a TOMLDecodeError, or a number with thousands of digits
        problem, _, position = str(error).partition(" (at ")
        if not position:
            raise TomlError(f"the file is not TOML: {problem}", None) from None
        found = re.match(r"line (\d+)", position)
        line = int(found[1]) if found else document.rstrip().count("\n") + 1
        wrong = document.split("\n")[line - 1].strip(" \t\r")
        twice = problem.startswith("Cannot ")  # overwrite, declare twice, redefine
        allowed = "each name once" if twice else 'rows such as stripe = "100/s"'
        raise TomlError(
            f"{shown(wrong)} is not TOML: {problem}; allowed: {allowed}", line
        ) from None
    return tables


def find_lines(document: str) -> dict[Path, int]:
    """Return the line of each key, table and item of an array in a valid document, from 1.

    A table that is written in several parts has the line of its first part.
    """
    return _Scanner(document).scan()


class _Scanner:
    def __init__(self, document: str) -> None:
        self._document = document
        self._offset = 0
        self._lines: dict[Path, int] = {}
        self._line, self._counted = 1, 0
        self._last_items: dict[Path, int] = {}  # of arrays of tables: the index of the last

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blanks() < len(self._document):
            if self._take("["):
                is_item = self._take("[")
                table = self._scan_key(())
                if is_item:
                    index = self._last_items[table] = self._last_items.get(table, -1) + 1
                    table = (*table, index)
                    self._note(table)
                self._take("]]" if is_item else "]")
            else:
                self._scan_pair(table)
        return self._lines

    def _scan_pair(self, table: Path) -> None:
        path = self._scan_key(table)
        self._take("=")
        self._scan_value(path)

    def _scan_key(self, path: Path) -> Path:
        """Scan a key, dotted or not; return its path."""
        while True:
            self._skip_blanks()
            path = (*path, _unquote(self._match(_KEY)))
            self._note(path)
            if not self._take("."):
                return path
            if path in self._last_items:
                path = (*path, self._last_items[path])

    def _scan_value(self, path: Path) -> None:
        if self._take("["):
            index = 0
            while not self._take("]"):
                self._note((*path, index))
                self._scan_value((*path, index))
                self._take(",")
                index += 1
        elif self._take("{"):
            while not self._take("}"):
                self._scan_pair(path)
                self._take(",")
        else:
            self._match(_SCALAR)

    def _take(self, text: str) -> bool:
        """Skip blanks, then ``text`` if it is next; return whether it was."""
        self._skip_blanks()
        found = self._document.startswith(text, self._offset)
        self._offset += len(text) if found else 0
        return found

    def _skip_blanks(self) -> int:
        """Skip white space, newlines and comments; return the offset after them."""
        self._match(_BLANK)
        return self._offset

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._document, self._offset)
        if match is None:
            raise ValueError(f"not valid TOML at offset {self._offset}")
        self._offset = match.end()
        return match[0]

    def _note(self, path: Path) -> None:
        """Note the line of a path that begins, or has just been scanned in one line."""
        self._line += self._document.count("\n", self._counted, self._offset)
        self._counted = self._offset
        self._lines.setdefault(path, self._line)


def _unquote(key: str) -> str:
    return str(tomllib.loads(f"key = {key}")["key"]) if key[0] in "\"'" else key
