"""Slots that the running tasks of this worker hold, renewed while they run and given back after.

A slot is told to be given back late or twice without harm: its lease runs out in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery_throttle.operations.plan import Plan
from celery_throttle.operations.settle import Plans
from celery_throttle.worker.claims.recent_reports import Told

#: Where a slot is kept: its entries and its waits, as ``line_data.lua`` names them.
Place = tuple[str, str]

#: A slot to give back: its place and its holder, as ``claim.lua`` takes them.
Release = tuple[str, str, str]


def places_of(slots: Sequence[bytes]) -> list[Place]:
    """Where slots are kept, of a script's reply."""
    names = [name.decode() for name in slots]
    return list(zip(names[::2], names[1::2], strict=True))


class TaskSlots:
    """The slots of one worker.

    Args:
        worker: this worker's name.
        released: called when a task's slots are to be given back, from whatever thread ended it.
    """

    def __init__(self, worker: str, released: Callable[[], None]) -> None:
        self._worker = worker
        self._on_released = released
        self._held: dict[Any, tuple[str, Sequence[Place]]] = {}
        self._releases: deque[Release] = deque()
        self._told: Told[Release] = Told()

    def __len__(self) -> int:
        return len(self._held)

    def holder(self, token: int) -> str:
        """Who holds the slots of a task, by a token of this worker; see ``release_slots.lua``."""
        return f"{self._worker} {token}"

    def holds(self, request: Any) -> bool:
        """Whether a task has its slots."""
        return request in self._held

    def hold(self, request: Any, token: int, places: Sequence[Place]) -> None:
        """The slots of a task that starts now were taken, if it has any."""
        if places:
            self._held[request] = self.holder(token), places

    def count(self, entries: str) -> int:
        """How many tasks hold a slot that is kept there."""
        return sum(
            1 for _, places in list(self._held.values()) for at, _ in places if at == entries
        )

    def requests(self) -> list[Any]:
        """Those that hold slots."""
        return list(self._held)

    def end(self, request: Any) -> None:
        """The task has ended, in whatever way."""
        holder, places = self._held.pop(request, ("", ()))
        if places:
            self.doubt(holder, places)

    def doubt(self, holder: str, places: Iterable[Place]) -> None:
        """Nobody holds these slots, if they were taken at all."""
        self._releases.extend((entries, waits, holder) for entries, waits in places)
        self._on_released()

    def unreported(self) -> bool:
        """Whether there are slots to give back."""
        return bool(self._releases)

    def take_releases(self) -> list[Release]:
        """Slots to give back; :meth:`release_again` if that fails."""
        releases = [self._releases.popleft() for _ in range(len(self._releases))]
        self._told.add(releases)
        return releases

    def release_again(self, releases: Iterable[Release]) -> None:
        """The server may not have heard of them."""
        self._releases.extend(releases)

    def tell_again(self) -> None:
        """The server may have forgotten what it was told last."""
        self._releases.extend(self._told.recent())

    def renewal(self, plans: Plans, lease: float) -> Plan[None]:
        """Let all leases go on for some seconds."""
        held = [
            (entries, holder)
            for holder, places in list(self._held.values())
            for entries, _ in places
        ]
        if held:
            # Also where they are forgotten, or were never known: the tasks run.
            yield plans.renew_call(held, lease, anew=True)
