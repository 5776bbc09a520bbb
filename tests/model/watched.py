"""What workers share: the server, and the broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_throttle.limits.key import LimitRef
from celery_throttle.store.client import Note, Store
from celery_throttle.store.script import Call, pack_command
from tests.algorithms.wire import Commands, Wire
from tests.model.tasks import Message
from tests.model.world import World
from tests.protocol import Protocol


class Delivery(NamedTuple):
    """A message on its way to a gate.

    Attributes:
        token: of the claim it comes from; 0 if the broker brought it.
    """

    message: Message
    redelivered: bool = False
    token: int = 0


class Run(NamedTuple):
    """A task that runs, or waits for the slot that was booked for it.

    Attributes:
        holder: of its slots, at ``places`` as the script told them.
        token: of its claim; 0 if it was admitted at the gate.
        start: when, by the clock.
    """

    message: Message
    holder: str
    places: Sequence[bytes]
    token: int
    start: int

    def releases(self) -> list[tuple[LimitRef, str]]:
        refs = self.message.task.kind.refs
        return [(ref, self.holder) for ref in refs] if self.places else []


class Watched(Store):
    """Counts the changes that the last script has made to what is kept."""

    _CHANGES = Commands([pack_command("INFO", "persistence")])

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._watching = Wire(url)
        self.changes, self._all_changes = 0, 0

    def close(self) -> None:
        self._watching.close()

    def run(self, call: Call, _: Note | None = None) -> Any:
        reply, (about,) = self._watching.run([call, self._CHANGES])
        found = about.partition(b"rdb_changes_since_last_save:")[2].split(maxsplit=1)[0]
        self.changes, self._all_changes = int(found) - self._all_changes, int(found)
        return reply


@dataclass
class Server:
    """The server, and what it should hold. ``broker``: what no worker has yet, or any more."""

    protocol: Protocol
    watched: Watched
    world: World
    broker: list[Delivery] = field(default_factory=list)

    def advance(self, us: int) -> None:
        """Time passes; or the clock steps back, in no time."""
        self.world.advance(us)
        self.protocol.now = self.world.clock

    def recall(self) -> None:
        """What was set aside goes back to its lines."""
        aside, self.world.aside = self.world.aside, {}
        self.protocol.recall(*aside)
        for waiting in aside.values():
            self.world.rejoin(waiting)

    def check_refusal(self, *, counted: bool) -> None:
        """A refusal writes nothing but a counter, and a state anew when the clock stepped back.

        The first of its kind lets the totals expire later, which is a second change.
        """
        allowed = (1, 2) if counted else (0,)
        assert self.watched.changes in allowed or self.world.back, "a refusal has written something"
