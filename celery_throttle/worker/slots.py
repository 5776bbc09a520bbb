"""Slots that the running tasks of this worker hold, renewed while they run and given back after.

A slot is told to be given back late or twice without harm: its lease runs out in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celery_throttle.changes import Plan
from celery_throttle.keys import Keys
from celery_throttle.plans import Plans
from celery_throttle.scope import LimitRef

#: A slot to give back: its entries, its waits and its holder, as ``claim.lua`` takes them.
Release = tuple[str, str, str]


class TaskSlots:
    """The slots of one worker.

    Args:
        keys: the names in Redis.
        worker: this worker's name.
        released: called when a task's slots are to be given back, from whatever thread ended it.
    """

    def __init__(self, keys: Keys, worker: str, released: Callable[[], None]) -> None:
        self._keys = keys
        self._worker = worker
        self._on_released = released
        self._held: dict[Any, tuple[str, list[LimitRef]]] = {}
        self._releases: deque[Release] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def holder(self, token: int) -> str:
        """Who holds the slots of a task, by a token of this worker; as ``lines.lua`` names it."""
        return f"{self._worker} {token}"

    def holds(self, request: Any) -> bool:
        """Whether a task has its slots."""
        return request in self._held

    def hold(self, request: Any, token: int, refs: Iterable[LimitRef]) -> None:
        """The slots of a task that starts now were taken."""
        self._held[request] = self.holder(token), list(refs)

    def end(self, request: Any) -> None:
        """The task has ended, in whatever way."""
        holder, refs = self._held.pop(request, ("", []))
        if refs:
            self.doubt(holder, refs)

    def doubt(self, holder: str, refs: Iterable[LimitRef]) -> None:
        """Nobody holds these slots, if they were taken at all."""
        for ref in refs:
            self._releases.append((self._keys.entries(ref), self._keys.waits(ref), holder))
        self._on_released()

    def unreported(self) -> bool:
        """Whether there are slots to give back."""
        return bool(self._releases)

    def take_releases(self) -> list[Release]:
        """Slots to give back; :meth:`release_again` if that fails."""
        return [self._releases.popleft() for _ in range(len(self._releases))]

    def release_again(self, releases: Iterable[Release]) -> None:
        """The server may not have heard of them."""
        self._releases.extend(releases)

    def renewal(self, plans: Plans, lease: float) -> Plan[None]:
        """Let all leases go on for some seconds."""
        held = [(ref, holder) for holder, refs in list(self._held.values()) for ref in refs]
        if held:
            yield from plans.renew(held, lease)
