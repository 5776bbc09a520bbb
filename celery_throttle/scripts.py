"""The Lua scripts: loaded from package resources, one library before another where they say so.

A script names the libraries it needs in a comment ``-- uses: name``; a library may name another. A
script runs from its first line at each call, and every function costs time to make even if it is
not called: what ``-- uses rarely: name`` names becomes one function of that name, and gives what
the library returns at its end; what ``-- first: name`` names is tried before all libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files

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


def _read(name: str, seen: list[str]) -> str:
    """A library or script, after those that it uses and that are not there yet."""
    if name in seen:
        return ""
    seen.append(name)
    text = (files("celery_throttle") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    before = [_read(used, seen) for used in (*_names(_FIRST, text), *_names(_USES, text))]
    rarely = [
        f"local function {used}()\n{_read(used, seen)}end\n" for used in _names(_USES_RARELY, text)
    ]
    return "".join((*before, *rarely, text, "\n"))


def _names(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name.strip() for found in pattern.findall(text) for name in found.split(",")]


@cache
def script(name: str) -> Script:
    """The script of that name with its libraries; read once."""
    source = _read(name, []).encode()
    # Redis names scripts by SHA-1; nothing is secured by it.
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
