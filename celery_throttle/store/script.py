"""The Lua scripts, and calls of them.

Each operation on the server is one script in ``store/scripts/``. A script names the files that it
includes, from ``store/scripts/lib/`` and ``algorithms/``; an included file may include others:

* ``-- uses: name`` inserts the file before the script.
* ``-- uses rarely: name`` inserts the file as a function of that name, whose result is the file's
  own. Each call runs a script from its first line, so each function that a script defines costs
  time even if it is never called.
* ``-- first: name`` inserts the file before all others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files

#: The folder of the scripts, and the folders of included files.
_SCRIPTS = "store/scripts"
_INCLUDES = ("store/scripts/lib", "algorithms")

_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_FIRST = re.compile(r"^-- first: (.+)$", re.MULTILINE)
_USES_RARELY = re.compile(r"^-- uses rarely: (.+)$", re.MULTILINE)

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script with its includes, as the server gets it."""

    name: str
    source: bytes
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One script to run, with its keys and arguments.

    Attributes:
        packed: the command in the Redis protocol, packed once, as a call may be sent many times.
    """

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


def source_of(name: str, folders: Sequence[str] = _INCLUDES) -> str:
    """Return the text of one Lua file, without its includes.

    Raises:
        FileNotFoundError: no folder has the file.
    """
    package = files("celery_throttle")
    for folder in folders:
        file = package / folder / f"{name}.lua"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name}.lua is not in {' or '.join(folders)}")


def script_names() -> list[str]:
    """Return the names of all scripts, includes not among them."""
    folder = files("celery_throttle") / _SCRIPTS
    return sorted(file.name[:-4] for file in folder.iterdir() if file.name.endswith(".lua"))


def _with_includes(text: str, seen: list[str]) -> str:
    """Insert the includes of a file before it, except those in ``seen``."""

    def include(name: str) -> str:
        if name in seen:
            return ""
        seen.append(name)
        return _with_includes(source_of(name), seen)

    includes = [include(name) for name in (*_names(_FIRST, text), *_names(_USES, text))]
    functions = [
        f"local function {name}()\n{include(name)}end\n" for name in _names(_USES_RARELY, text)
    ]
    return "".join((*includes, *functions, text, "\n"))


def _names(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name.strip() for found in pattern.findall(text) for name in found.split(",")]


@cache
def script(name: str) -> Script:
    """Return the script of that name with its includes, cached."""
    source = _with_includes(source_of(name, [_SCRIPTS]), []).encode()
    # Redis identifies scripts by SHA-1; no security depends on it.
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
