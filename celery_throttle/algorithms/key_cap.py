"""The keys of a limit that are in use, where ``max-keys`` bounds them. Twin: ``key_cap.lua``."""

from __future__ import annotations


class Crowd:
    """The keys of one name, and until when (in microseconds) anything of each is in use."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}

    def use(self, key: str, until: int, now: int) -> None:
        """The state of a key was written. Those that are over are forgotten."""
        self._until = {one: till for one, till in self._until.items() if till > now}
        self._until[key] = until

    def renew(self, key: str, until: int) -> None:
        """The leases of a key go on, if it is not forgotten."""
        if key in self._until:
            self._until[key] = max(self._until[key], until)

    def forget(self, key: str) -> None:
        """What was used of a key is forgotten."""
        self._until.pop(key, None)

    def has(self, key: str, now: int) -> bool:
        """Whether a key is in use."""
        return self._until.get(key, 0) > now

    def wait(self, new: int, max_keys: int, now: int) -> int:
        """Microseconds until there is room for so many keys more, at most ``max_keys``."""
        tills = sorted(till for till in self._until.values() if till > now)
        over = len(tills) + new - max_keys
        return tills[over - 1] - now if over > 0 else 0
