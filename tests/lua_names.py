"""Lists the Lua files, and resolves the names of a Lua 5.1 script.

The parser keeps nothing but scopes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import celery_throttle

_TOKEN = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\])*'|\d+\.?\d*(?:e\d+)?|[A-Za-z_]\w*|\.\.\.|\.\.|[=~<>]=|\S"
)
_KEYWORD = re.compile(r"do|end|false|function|if|in|nil|not|or|and|return|then|true")
_OPERATOR = re.compile(r"and|or|[-+*/%^<>]|\.\.|[=~<>]=")
_BLOCK_ENDS = frozenset(("end", "else", "elseif", "until", ""))

_PACKAGE = Path(celery_throttle.__file__).parent


def script_names() -> list[str]:
    """Return the names of all scripts."""
    files = _PACKAGE.glob("store/scripts/*/*.lua")
    return sorted(file.stem for file in files if file.parent.name != "lib")


@dataclass
class Names:
    """What a script does with names.

    Attributes:
        undefined: names that are used but not declared where they are used.
        shadows: names that are declared inside the scope of another local of the same name.
        used: names that are used where they are declared.
    """

    undefined: set[str] = field(default_factory=set)
    shadows: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


class _Parser:
    def __init__(self, source: str) -> None:
        found = (match.group() for match in _TOKEN.finditer(source))
        self._tokens = [token for token in found if not token.startswith("--")] + [""]
        self._at = 0
        self._scopes: list[set[str]] = [set()]
        self.names = Names()

    def _take(self, expected: str | None = None) -> str:
        token = self._tokens[self._at]
        assert expected in (None, token), (expected, self._tokens[self._at - 9 : self._at + 9])
        self._at += 1
        return token

    def _accept(self, *tokens: str) -> bool:
        found = self._tokens[self._at] in tokens
        self._at += found
        return found

    def _declare(self, *names: str) -> None:
        for name in names:
            if name != "_" and any(name in scope for scope in self._scopes):
                self.names.shadows.add(name)
            self._scopes[-1].add(name)

    def _use(self, name: str) -> None:
        declared = any(name in scope for scope in self._scopes)
        (self.names.used if declared else self.names.undefined).add(name)

    def _list(self, item: Callable[[], object]) -> None:
        item()
        while self._accept(","):
            item()

    def _name_list(self) -> list[str]:
        names: list[str] = []
        self._list(lambda: names.append(self._take()))
        return names

    def block(self, *declared: str) -> None:
        """Parse statements up to the end of their block."""
        self._scopes.append(set())
        self._declare(*declared)
        self.statements()
        self._scopes.pop()

    def statements(self) -> None:
        """Parse statements in the scope that is open."""
        while self._tokens[self._at] not in _BLOCK_ENDS:
            self._statement()

    def finish(self) -> None:
        """Raise if anything is left to parse."""
        self._take("")

    def _statement(self) -> None:  # noqa: C901, PLR0912  # one for each statement
        if self._accept("local"):
            if self._accept("function"):
                self._declare(self._take())
                self._function()
            else:
                names = self._name_list()
                if self._accept("="):
                    self._list(self._expression)
                self._declare(*names)
        elif self._accept("function"):
            self._use(self._take())
            while self._accept(".", ":"):
                self._take()
            self._function()
        elif self._accept("if"):
            self._if()
        elif self._accept("for"):
            names = self._name_list()
            assert self._accept("=", "in")
            self._list(self._expression)
            self._body(*names)
        elif self._accept("while"):
            self._expression()
            self._body()
        elif self._accept("return"):
            if self._tokens[self._at] not in _BLOCK_ENDS:
                self._list(self._expression)
        elif not self._accept("break"):
            self._list(self._suffixed)
            if self._accept("="):
                self._list(self._expression)

    def _body(self, *declared: str) -> None:
        self._take("do")
        self.block(*declared)
        self._take("end")

    def _if(self) -> None:
        self._expression()
        self._take("then")
        self.block()
        if self._accept("elseif"):
            self._if()
            return
        if self._accept("else"):
            self.block()
        self._take("end")

    def _function(self) -> None:
        self._take("(")
        names = [] if self._tokens[self._at] == ")" else self._name_list()
        self._take(")")
        self.block(*(name for name in names if name != "..."))
        self._take("end")

    def _expression(self) -> None:
        while self._accept("not", "#", "-"):
            pass
        if self._accept("function"):
            self._function()
        elif self._tokens[self._at] == "{":
            self._table()
        else:
            self._suffixed()
        if _OPERATOR.fullmatch(self._tokens[self._at]):
            self._take()
            self._expression()

    def _table(self) -> None:
        self._take("{")
        while not self._accept("}"):
            if self._accept("["):
                self._expression()
                self._take("]")
                self._take("=")
            elif self._tokens[self._at + 1] == "=":
                self._take()
                self._take("=")
            self._expression()
            self._accept(",")

    def _suffixed(self) -> None:
        first = self._take()
        if first == "(":
            self._expression()
            self._take(")")
        elif (first[0].isalpha() or first[0] == "_") and not _KEYWORD.fullmatch(first):
            self._use(first)
        while True:
            if self._accept(".", ":"):
                self._take()
            elif self._accept("["):
                self._expression()
                self._take("]")
            elif self._accept("("):
                if not self._accept(")"):
                    self._list(self._expression)
                    self._take(")")
            else:
                break


def resolve(source: str) -> Names:
    """Return what a script does with names."""
    parser = _Parser(source)
    parser.statements()
    parser.finish()
    return parser.names
