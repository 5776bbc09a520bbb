"""What an error that the server replied means for the call that met it.

Every error with a meaning of its own (:data:`_MEANS`) is replied before anything was written: a
script's first write is where the server refuses, and what the cluster refuses it has not begun. Any
other may come from the middle of a script, such as for a right that is missing, and the server
takes nothing back of what the script did until then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

# Redis 6 wraps the error of a script's command in one of its own.
_CODE = re.compile(r"(?:ERR Error running script .*?: -)?([A-Z]+)", re.DOTALL)


class Means(Enum):
    """What to do about an error."""

    LOAD = auto()  #: the script is not known here: load it
    MOVED = auto()  #: another node of the cluster serves the keys from now on
    ASK = auto()  #: another node serves them this once: their slot is on its way there
    ELSEWHERE = auto()  #: not this server, or not now: another one may be in charge
    LATER = auto()  #: this server, but not now
    FULL = auto()  #: nothing can be added now; what takes something away may pass
    NEVER = auto()  #: the call is wrong, or not allowed; part of it may have been carried out


_MEANS = {
    "NOSCRIPT": Means.LOAD,
    "MOVED": Means.MOVED,
    "ASK": Means.ASK,
    "READONLY": Means.ELSEWHERE,
    "MASTERDOWN": Means.ELSEWHERE,
    "LOADING": Means.ELSEWHERE,
    "CLUSTERDOWN": Means.ELSEWHERE,
    "NOREPLICAS": Means.ELSEWHERE,
    "TRYAGAIN": Means.LATER,
    "BUSY": Means.LATER,
    "OOM": Means.FULL,
    "MISCONF": Means.LATER,
}

# A script's command that the user may not run is told in words only.
_RIGHTS = re.compile(r"no permissions|user executing the script", re.IGNORECASE)

_HELP = {
    "OOM": "free memory there, or raise its maxmemory",
    "MISCONF": "it cannot save its data to disk, so it takes no writes: its log says why",
    "NOREPLICAS": "its min-replicas-to-write asks for more replicas than follow it",
    "RIGHTS": "docs/stores.md tells which rights the user needs",
}


class Redirect(NamedTuple):
    """The node that a redirection names; no host if it is the one that was asked."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error reply, read."""

    text: str

    @property
    def code(self) -> str:
        """The word that it begins with, ``READONLY``; empty if there is none."""
        found = _CODE.match(self.text)
        return found[1] if found else ""

    @property
    def means(self) -> Means:
        """What to do about it."""
        return _MEANS.get(self.code, Means.NEVER)

    @property
    def redirect(self) -> Redirect:
        """Where MOVED and ASK point to: ``MOVED 3999 10.0.0.7:6381``."""
        host, _, port = self.text.split()[2].rpartition(":")
        return Redirect("" if host == "?" else host, int(port))

    def __str__(self) -> str:
        hint = _HELP.get("RIGHTS" if _RIGHTS.search(self.text) else self.code)
        return f"{self.text} ({hint})" if hint else self.text
