"""Loads the Lua scripts, and packs calls of them.

Each operation on the server is one script in ``store/scripts/``, in the folder of what it is about.
A script names the files that it includes, which are in ``store/scripts/lib/`` and ``algorithms/``;
an included file may include others:

* ``-- uses: name`` puts the file before the script, once.
* ``-- uses rarely: name`` makes the file the body of one function of that name, whose result is
  what the file returns. The server runs a script from its first line at each call, so each function
  that it defines costs time even if it is never called.
* ``-- first: name`` puts the file before all others.

A constant (``local NAMES = numbers or strings``, in capitals) is written into the script where it
is used: a variable that functions refer to costs time at each call, for each of these functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files

#: The folders of the scripts, and of the files that they include.
_SCRIPTS = tuple(
    f"store/scripts/{name}"
    for name in ("limits", "definitions", "lines", "fan_outs", "workers", "observe")
)
_LIB = "store/scripts/lib"
_INCLUDES = (
    _LIB,
    *(
        f"{_LIB}/{name}"
        for name in ("limits", "definitions", "lines", "waiting_lists", "claim", "fan_out")
    ),
    "algorithms",
)

_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_FIRST = re.compile(r"^-- first: (.+)$", re.MULTILINE)
_USES_RARELY = re.compile(r"^-- uses rarely: (.+)$", re.MULTILINE)

_CONSTANTS = re.compile(r"local ([A-Z_]+(?:, [A-Z_]+)*) = (.+)")
_LITERAL = re.compile(r"'[^']*'|[\d(][\d ^*()]*")
_COMMENT_STRING_OR_CONSTANT = re.compile(r" *--.*|'[^']*'|\b[A-Z][A-Z_]+\b")

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script as the server sees it."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One script with its keys and arguments; packed once, since it may be sent many times."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    packed: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        command = ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)
        object.__setattr__(self, "packed", pack_command(*command))


def pack_command(*parts: Argument) -> bytes:
    """Pack one command in the Redis protocol."""
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)


@cache
def source_of(name: str, folders: tuple[str, ...] = _INCLUDES) -> str:
    """Return the text of one Lua file, without the files that it includes."""
    package = files("celery_throttle")
    for folder in folders:
        file = package / folder / f"{name}.lua"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name}.lua is not in {' or '.join(folders)}")


def source_with_includes(name: str) -> str:
    """Return the text of a script behind the files that it includes."""
    text = source_of(name, _SCRIPTS)
    # A call has one time, so the clock is never read in a function.
    shared = {"clock", *_reachable(text, _FIRST, _USES)}
    return _with_includes(text, shared, set())


def _with_includes(text: str, shared: set[str], seen: set[str]) -> str:
    """Put the included files that are not in ``seen`` before the text of a file.

    What only the body of a function includes is in that body, other files (``shared``) are not.
    """
    chunks = []

    def include(names: Iterable[str]) -> None:
        for name in names:
            if name not in seen:
                seen.add(name)
                chunks.append(_with_includes(source_of(name), shared, seen))

    include((*_names(_FIRST, text), *_names(_USES, text)))
    for name in _names(_USES_RARELY, text):
        if name not in seen:
            seen.add(name)
            body = source_of(name)
            include(used for used in _reachable(body, _USES, _USES_RARELY) if used in shared)
            chunks.append(
                f"local function {name}()\n{_with_includes(body, shared, set(seen))}end\n"
            )
    return "".join((*chunks, text, "\n"))


@cache
def _reachable(text: str, *kinds: re.Pattern[str]) -> Sequence[str]:
    """The files that a file includes, and those that they include; each once."""
    names = [name for kind in kinds for name in _names(kind, text)]
    found = (one for name in names for one in (name, *_reachable(source_of(name), *kinds)))
    return tuple(dict.fromkeys(found))


def _names(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name.strip() for found in pattern.findall(text) for name in found.split(",")]


def _with_literals(source: str) -> str:
    """Write the constants of a script where they are used, and leave out its comments."""
    literals: dict[str, str] = {}

    def with_literals(text: str) -> str:
        def literal(match: re.Match[str]) -> str:
            found = match.group()
            return "" if found.lstrip().startswith("--") else literals.get(found, found)

        return _COMMENT_STRING_OR_CONSTANT.sub(literal, text)

    lines = []
    for line in source.splitlines():
        declared = _CONSTANTS.fullmatch(line)
        values = with_literals(declared[2]).split(", ") if declared else []
        if declared and all(map(_LITERAL.fullmatch, values)):
            for name, value in zip(declared[1].split(", "), values, strict=True):
                text = value if value.isdigit() or value[0] == "'" else f"({value})"
                if literals.setdefault(name, text) != text:
                    raise ValueError(f"constant {name} is declared twice, as {value}")
        elif text := with_literals(line):
            lines.append(f"{text}\n")
    return "".join(lines)


@cache
def script(name: str) -> Script:
    """Return the script of a name with its included files; reads each once."""
    source = _with_literals(source_with_includes(name)).encode()
    # Redis identifies scripts by SHA-1; nothing is secured by it.
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
