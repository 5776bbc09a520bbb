"""Slots that the running tasks of this worker hold: renewed meanwhile, released at their ends.

A release may reach the server late or twice without harm: the slot's lease runs out in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from celery_throttle.operations.acquire import renew_call
from celery_throttle.operations.plan import PlanContext
from celery_throttle.store.script import Call

T = TypeVar("T")


class SlotKeys(NamedTuple):
    """The keys of a limit with slots."""

    entries: str  #: key of the holders
    waiting_lists: str  #: key of the waiting lists of tasks at the limit


#: A slot to release: its entries, its waiting lists and its holder, as ``claim.lua`` takes them.
Release = tuple[str, str, str]


def read_slot_keys(reply: Sequence[bytes]) -> list[SlotKeys]:
    """Return the keys of slots from a script's reply, in which the two alternate."""
    names = [name.decode() for name in reply]
    return [SlotKeys(*pair) for pair in zip(names[::2], names[1::2], strict=True)]


class ReportQueue(deque[T]):
    """Reports to make with the next call. Thread-safe.

    The reports of recent calls are remembered: a replica that takes the server's place may have
    missed them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recent: set[T] = set()
        self._older: set[T] = set()

    def take(self) -> list[T]:
        """Return the reports to make now. If the call fails, they must be added again."""
        reports = [self.popleft() for _ in range(len(self))]
        self._recent.update(reports)
        return reports

    def remembered(self) -> set[T]:
        """Return the reports of recent calls."""
        return self._older | self._recent

    def repeat(self) -> None:
        """Add the reports of recent calls once more."""
        self.extend(self.remembered())

    def forget(self) -> None:
        """Forget what was reported before the last call of this method."""
        self._older, self._recent = self._recent, set()


@dataclass(eq=False, repr=False)
class TaskSlots:
    """The slots that the tasks of one worker hold. Thread-safe."""

    worker: str
    #: Called when slots are to be released, from the thread in which the task ended.
    on_released: Callable[[], None]

    def __post_init__(self) -> None:
        self._held: dict[Any, tuple[str, Sequence[SlotKeys]]] = {}
        #: The slots whose release the server has yet to learn of.
        self.releases: ReportQueue[Release] = ReportQueue()

    def __len__(self) -> int:
        return len(self._held)

    def holder(self, token: int, task_id: str) -> str:
        """Return the name under which a task holds slots: see ``line_data.lua``."""
        return f"{self.worker} {token} {task_id}"

    def holds(self, request: Any) -> bool:
        """Return whether a task has slots."""
        return request in self._held

    def hold(self, request: Any, holder: str, slots: Sequence[SlotKeys]) -> None:
        """Record the slots that were taken for a task which starts now, if any were."""
        if slots:
            self._held[request] = holder, slots

    def move(self, request: Any, successor: Any) -> None:
        """Let another request of the same task hold the slots."""
        if request in self._held:
            self._held[successor] = self._held.pop(request)

    def count(self, entries: str) -> int:
        """Return the number of tasks that hold a slot with this key ``entries``."""
        return sum(
            1 for _, slots in list(self._held.values()) for keys in slots if keys.entries == entries
        )

    def requests(self) -> list[Any]:
        """Return the requests of the tasks that hold slots."""
        return list(self._held)

    def end(self, request: Any) -> None:
        """Release the slots of a task that has ended, in whatever way."""
        holder, slots = self._held.pop(request, ("", ()))
        if slots:
            self.release(holder, slots)

    def release(self, holder: str, slots: Iterable[SlotKeys]) -> None:
        """Release slots with the next report, if the holder has them at all."""
        self.releases.extend((keys.entries, keys.waiting_lists, holder) for keys in slots)
        self.on_released()

    def renew_call(self, plans: PlanContext, lease: float) -> Call | None:
        """Return the call that renews all leases for some seconds; None if no slot is held."""
        held = [
            (keys.entries, holder) for holder, slots in list(self._held.values()) for keys in slots
        ]
        # With `anew` also those that the server has lost, or never had: the tasks run.
        return renew_call(plans, held, lease, anew=True) if held else None
