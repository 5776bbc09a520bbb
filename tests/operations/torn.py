"""Scripts that end in the middle, as by a right that is missing: nothing takes back what they did.

A store that is told so runs a script with a few lines in front of it, by which the server raises an
error instead of carrying out the n-th command.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from celery_throttle.store.client import Note, Store
from celery_throttle.store.script import Call, Script, script

_IN_FRONT = """
local redis, left = setmetatable({ call = false }, { __index = redis }), %d
redis.call = function(...)
  left = left - 1
  if left == 0 then
    error('torn')
  end
  return getmetatable(redis).__index.call(...)
end
"""


class TornStore(Store):
    """A store whose scripts can be made to fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._at: dict[str, int] = {}

    def tear(self, name: str, command: int) -> None:
        """Let the next call of a script fail at one of its commands, the first being 1."""
        self._at[script(name).name] = command  # a name that no script has is an error

    def whole(self) -> bool:
        """Whether the last call that was to fail passed, as it has fewer commands. Forgets it."""
        passed = bool(self._at)
        self._at.clear()
        return passed

    def run(self, call: Call, note: Note | None = None) -> Any:
        """See :meth:`Store.run`."""
        command = self._at.pop(call.script.name, None)
        if command is None:
            return super().run(call, note)
        source = (_IN_FRONT % command).encode() + call.script.source
        name = sha1(source, usedforsecurity=False).hexdigest()
        torn = Call(Script(call.script.name, source, name), call.keys, call.args)
        reply = super().run(torn, note)
        self._at[call.script.name] = command  # it has fewer commands
        return reply
