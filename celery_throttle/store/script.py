"""Builds the Lua scripts, and packs calls of them.

Each operation on the server is one script in ``store/scripts/``, in the folder of what it is about.
What scripts share is in ``store/scripts/lib/`` and ``algorithms/``. A script gets of these files
what it names, and what that names, as the server runs a script from its first line at each call,
and each function that it defines costs time:

* Of most files each function, table or constant is taken by itself.
* A function whose first line ends with ``-- rare`` defines what only it needs itself, each time it
  is called. So calls that do not need it spend no time on that.
* A file that ends with ``return`` is the body of such a function, with the name of the file. It
  returns what may be used several times: ``scaling()``.

All of it goes before the script, or in place of its line ``-- library``. A constant (in capitals, a
number or a string) is written where it is used: a variable that functions refer to costs time, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

import hiredis

#: The folders of the scripts, and of what they share.
_KINDS = ("limits", "definitions", "lines", "fan_outs", "workers", "observe")
_SHARED = ("store/scripts/lib", "algorithms")

_STRING_OR_COMMENT = re.compile(r"'[^']*'| *--.*")
_STATEMENT = re.compile(r"^(?=local )", re.MULTILINE)
_DECLARED = re.compile(r"local (?:function )?(\w+(?:, \w+)*)")
_RESULT = re.compile(r"^return ", re.MULTILINE)
_RARE = re.compile(r"^local function (\w+)\(.*\) -- rare$", re.MULTILINE)
# Names that are mentioned, without fields and what is assigned to.
_NAME = re.compile(r"'[^']*'|(?<![\w.])([A-Za-z_]\w*)\b(?! =[^=])")

_VALUE = r"(?:'[^']*'|[\dA-Z_(][\dA-Z_ ^*/()]*)"
_CONSTANTS = re.compile(
    rf"^local ([A-Z_]+(?:, [A-Z_]+)*) = ({_VALUE}(?:, {_VALUE})*)\n", re.MULTILINE
)
_CONSTANT = re.compile(r"'[^']*'|\b[A-Z][A-Z_]+\b")

Argument = str | bytes | int | float

_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stubs know tuples of one only


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
    try:
        return _pack(parts)
    except (TypeError, UnicodeEncodeError):  # of a subclass of int, or a lone surrogate
        data = [
            part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            for part in parts
        ]
        return _pack(tuple(data))


def pack_doubles(*numbers: float) -> bytes:
    """Pack numbers as one argument. A script unpacks them faster than it converts their texts."""
    return struct.pack(f"<{len(numbers)}d", *numbers)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what scripts share, without comments.

    Attributes:
        declared: the names by which others refer to it.
        parameters: of a function that defines what only it needs, and whose body is the text; None
            for other parts.
    """

    text: str
    declared: tuple[str, ...]
    parameters: str | None = None

    @property
    def is_body(self) -> bool:
        """Whether it is the body of a function that defines what only it needs."""
        return self.parameters is not None


class Library(NamedTuple):
    """What scripts share: parts by each name that they declare, and the values of constants."""

    parts: dict[str, Part]
    constants: dict[str, str]


@cache
def library() -> Library:
    """Return what the scripts share; reads the files once."""
    found = Library({}, {})
    for folder in _SHARED:
        for file in sorted((files("celery_throttle") / folder).iterdir(), key=lambda one: one.name):
            name, is_lua, _ = file.name.partition(".lua")
            if is_lua:
                text = file.read_text(encoding="utf-8")
                rare = set(_RARE.findall(text))
                for part in _parts_of(name, _take_constants(text, found.constants), rare):
                    for declared in part.declared:
                        if found.parts.setdefault(declared, part) is not part:
                            raise ValueError(f"{declared} is declared twice, now in {name}.lua")
    return found


def _parts_of(name: str, text: str, rare: AbstractSet[str]) -> list[Part]:
    if _RESULT.search(text):
        return [Part(text, (name,), parameters="")]
    declarations = [(_DECLARED.match(one), one) for one in _STATEMENT.split(text)]
    return [_part(one, found[1], rare) for found, one in declarations if found]


def _part(text: str, declared: str, rare: AbstractSet[str]) -> Part:
    if declared not in rare:
        return Part(text, tuple(declared.split(", ")))
    head, _, body = text.partition("\n")
    parameters = head[head.index("(") + 1 : -1]
    return Part(body.removesuffix("end\n"), (declared,), parameters)


def _take_constants(text: str, constants: dict[str, str]) -> str:
    """Add the constants of a text to those known; return the text without them and comments."""
    plain = _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0][0] == "'" else "", text)
    plain = "".join(f"{line}\n" for line in plain.splitlines() if line)
    for names, values in _CONSTANTS.findall(plain):
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            if constants.setdefault(name, value) != value:
                raise ValueError(f"constant {name} is declared twice, as {value}")
    return _CONSTANTS.sub("", plain)


def _with_literals(text: str, constants: Mapping[str, str]) -> str:
    """Write constants where they are used."""

    def literal(match: re.Match[str]) -> str:
        found = match.group()
        if found not in constants:
            return found
        value = _with_literals(constants[found], constants)
        return value if value.isdigit() or value[0] == "'" else f"({value})"

    return _CONSTANT.sub(literal, text)


@cache
def _named(text: str) -> Sequence[Part]:
    """Return the parts that a text names."""
    parts = library().parts
    return [parts[name] for name in dict.fromkeys(_NAME.findall(text)) if name in parts]


@cache
def _needed(text: str, *, in_bodies: bool) -> Mapping[Part, None]:
    """Return the parts that a text needs, and those that they need; ``in_bodies`` too."""
    found: dict[Part, None] = {}
    texts = [text]
    while texts:
        for part in _named(texts.pop()):
            if part not in found and (in_bodies or not part.is_body):
                texts.append(part.text)
            found[part] = None
    return found


def _link(text: str, outer: AbstractSet[Part] = frozenset()) -> str:
    """Put the parts that a text needs before it, but for those that are in ``outer``."""
    # A call has one time, so the clock is not read in a function.
    clock = {library().parts["now"]} & _needed(text, in_bodies=True).keys()
    own = (_needed(text, in_bodies=False).keys() | clock) - outer
    chunks: list[str] = []
    left = set(own)

    def include(part: Part) -> None:
        if part not in left:
            return
        left.remove(part)
        for needed in _needed(part.text, in_bodies=part.is_body):
            include(needed)
        chunks.append(_function(part, outer | own) if part.is_body else part.text)

    for part in _needed(text, in_bodies=True):
        include(part)
    return "".join((*chunks, text))


def _function(part: Part, outer: AbstractSet[Part]) -> str:
    """Return the function whose body a part is. What it defines cannot see its parameters."""
    [name] = part.declared
    if not part.parameters:
        return f"local function {name}()\n{_link(part.text, outer)}end\n"
    body = f"local {part.parameters} = ...\n{part.text}"
    return f"local function {name}(...)\n{_link(body, outer)}end\n"


@cache
def script(name: str) -> Script:
    """Return the script of a name with all that it needs; reads each file once."""
    package = files("celery_throttle") / "store" / "scripts"
    [file] = [one for kind in _KINDS if (one := package / kind / f"{name}.lua").is_file()]
    front, _, rest = file.read_text(encoding="utf-8").rpartition("\n-- library\n")
    constants = dict(library().constants)
    front, rest = _take_constants(front, constants), _take_constants(rest, constants)
    source = _with_literals(front + _link(rest), constants).encode()
    # Redis identifies scripts by SHA-1; nothing is secured by it.
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest())
