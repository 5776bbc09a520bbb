"""The cap on the keys of a name that are in use (``max-keys``). Twin: ``key_cap.lua``."""

from __future__ import annotations


class KeyCap:
    """The keys of one name, and until when (in microseconds) units or slots of each are in use."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}

    def use(self, key: str, until: int, now: int) -> None:
        """Record that a key is in use ``until`` a time; forget keys that are not in use now."""
        self._ends = {other: end for other, end in self._ends.items() if end > now}
        self._ends[key] = until

    def renew(self, key: str, until: int) -> None:
        """Extend the use of a key, unless it has been forgotten."""
        if key in self._ends:
            self._ends[key] = max(self._ends[key], until)

    def forget(self, key: str) -> None:
        """Record that a key is not in use."""
        self._ends.pop(key, None)

    def has(self, key: str, now: int) -> bool:
        """Whether a key is in use."""
        return self._ends.get(key, 0) > now

    def wait(self, count: int, max_keys: int, now: int) -> int:
        """Return the microseconds until ``count`` more keys may be used, at most ``max_keys``."""
        ends = sorted(end for end in self._ends.values() if end > now)
        excess = len(ends) + count - max_keys
        return ends[excess - 1] - now if excess > 0 else 0
