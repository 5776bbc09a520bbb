"""Who changes a limit, and why: recorded with the change, and shown wherever the limit is."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import dataclass
from functools import cache

from celery_throttle.errors import LimitValueError, shown

#: The greatest length of a name or a reason, in characters.
_MAX_LENGTH = 500

#: The author of pauses that follow from the answers of an API.
API = "API"


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, and why.

    Attributes:
        by: The name of the person or program, such as ``"ann@web-1"``.
        reason: The reason in words; None if none was given.
    """

    by: str
    reason: str | None = None

    @classmethod
    def of(cls, by: str | None = None, reason: str | None = None) -> Author:
        """Return the author of a change; ``by``: default the user of this process and its host.

        Raises:
            LimitValueError: An argument is not text of at most 500 characters.

        :meta private:
        """
        for name, text in (("by", by), ("reason", reason)):
            if text is not None and not (isinstance(text, str) and len(text) <= _MAX_LENGTH):
                raise LimitValueError(
                    f"{name} is {shown(text)}; allowed: text of up to {_MAX_LENGTH} characters"
                )
        return cls(_user_at_host() if by is None else by, reason)

    def pack(self) -> str:
        """Return the author as the scripts store it, in JSON.

        :meta private:
        """
        return json.dumps({"by": self.by, "why": self.reason})

    @classmethod
    def unpack(cls, packed: str) -> Author | None:
        """Return the author that :meth:`pack` packed; None for an empty text.

        :meta private:
        """
        if not packed:
            return None
        fields = json.loads(packed)
        return cls(fields["by"], fields["why"])


@cache
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
