"""The Lua scripts, and the calls of them.

Each operation on the server is one script in ``store/scripts/``. A script names the files that it
includes, which are in ``store/scripts/lib/`` and ``algorithms/``; an included file may include
others:

* ``-- uses: name`` puts the file before the script.
* ``-- uses rarely: name`` makes the file one function of that name, which returns what the file
  returns at its end. The server runs a script from its first line at each call, so each function
  that it defines costs time even if it is never called.
* ``-- first: name`` puts the file before all others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files

#: Where scripts are, and where the files are that they include.
_SCRIPTS = "store/scripts"
_INCLUDES = ("store/scripts/lib", "algorithms")

_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_FIRST = re.compile(r"^-- first: (.+)$", re.MULTILINE)
_USES_RARELY = re.compile(r"^-- uses rarely: (.+)$", re.MULTILINE)

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script as the server sees it."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One script to run with its keys and arguments: what the core builds, and an end sends.

    Attributes:
        packed: the command in the Redis protocol; made once, as a call may be sent many times.
    """

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument] = ()
    packed: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        command = ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)
        object.__setattr__(self, "packed", pack(*command))


def pack(*parts: Argument) -> bytes:
    """One command in the Redis protocol."""
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)


def source_of(name: str, folders: Sequence[str] = _INCLUDES) -> str:
    """Return the text of one Lua file, without those that it includes.

    Raises:
        FileNotFoundError: there is no such file in the folders.
    """
    package = files("celery_throttle")
    for folder in folders:
        file = package / folder / f"{name}.lua"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name}.lua is not in {' or '.join(folders)}")


def script_names() -> list[str]:
    """Return the names of all scripts, without included files."""
    folder = files("celery_throttle") / _SCRIPTS
    return sorted(file.name[:-4] for file in folder.iterdir() if file.name.endswith(".lua"))


def _with_includes(text: str, seen: list[str]) -> str:
    """Put before a file those that it includes and that are not there yet."""

    def included(name: str) -> str:
        if name in seen:
            return ""
        seen.append(name)
        return _with_includes(source_of(name), seen)

    before = [included(name) for name in (*_names(_FIRST, text), *_names(_USES, text))]
    rarely = [
        f"local function {name}()\n{included(name)}end\n" for name in _names(_USES_RARELY, text)
    ]
    return "".join((*before, *rarely, text, "\n"))


def _names(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name.strip() for found in pattern.findall(text) for name in found.split(",")]


@cache
def script(name: str) -> Script:
    """The script of that name with its libraries; read once."""
    source = _with_includes(source_of(name, [_SCRIPTS]), []).encode()
    # Redis names scripts by SHA-1; nothing is secured by it.
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
