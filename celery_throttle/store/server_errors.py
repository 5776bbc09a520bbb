"""Error replies of the server, and the remedy for each.

The server replies an error with a remedy of its own (:data:`_REMEDIES`) before anything was
written: it refuses a script at its first write, and a cluster refuses a script before it begins.
Any other error may come from the middle of a script, such as for a missing permission, and the
server does not undo what the script did until then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

# Redis 6 wraps the error of a script's command in one of its own.
_CODE = re.compile(r"(?:ERR Error running script .*?: -)?([A-Z]+)", re.DOTALL)


class Remedy(Enum):
    """What to do about an error."""

    LOAD = auto()  #: load the script: the server does not have it
    MOVED = auto()  #: call another node of the cluster, now and later
    ANOTHER_SERVER = auto()  #: find the server in charge: it is not this one, or not now
    RETRY = auto()  #: call this node again in a moment: keys are being moved to another node
    LATER = auto()  #: call this server again later
    FREE_MEMORY = auto()  #: the server accepts no writes that add data
    NONE = auto()  #: the call is wrong or not permitted; part of it may have been executed


_REMEDIES = {
    "NOSCRIPT": Remedy.LOAD,
    "MOVED": Remedy.MOVED,
    # The call is not sent to the other node with ASKING: a script there would find all keys empty
    # that it does not declare and that have not been moved yet.
    "ASK": Remedy.RETRY,
    "TRYAGAIN": Remedy.RETRY,
    # All nodes reply this for the moments before a replica takes over the slots of a lost master.
    "CLUSTERDOWN": Remedy.RETRY,
    "READONLY": Remedy.ANOTHER_SERVER,
    "MASTERDOWN": Remedy.ANOTHER_SERVER,
    "LOADING": Remedy.ANOTHER_SERVER,
    "NOREPLICAS": Remedy.ANOTHER_SERVER,
    "BUSY": Remedy.LATER,
    "OOM": Remedy.FREE_MEMORY,
    "MISCONF": Remedy.LATER,
}

# For a command in a script that the user may not run there is no error code.
_PERMISSION = re.compile(r"no permissions|user executing the script", re.IGNORECASE)

_HINTS = {
    "MOVED": "the node that it names cannot be reached, or names another one",
    "OOM": "free memory there, or raise its maxmemory",
    "MISCONF": "it cannot save its data to disk, so it refuses writes: its log says why",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write demands",
    "PERMISSION": "docs/how-to/servers.md lists the rights that the user needs",
}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error reply, parsed."""

    text: str

    @property
    def code(self) -> str:
        """The error code, the first word, such as ``READONLY``; empty if there is none."""
        found = _CODE.match(self.text)
        return found[1] if found else ""

    @property
    def remedy(self) -> Remedy:
        """What to do about the error."""
        return _REMEDIES.get(self.code, Remedy.NONE)

    @property
    def redirect(self) -> tuple[str, int]:
        """Host and port that MOVED names; no host if it is the one that was called."""
        host, _, port = self.text.split()[2].rpartition(":")  # MOVED 3999 10.0.0.7:6381
        return "" if host == "?" else host, int(port)

    def __str__(self) -> str:
        hint = _HINTS.get("PERMISSION" if _PERMISSION.search(self.text) else self.code)
        return f"{self.text} ({hint})" if hint else self.text
