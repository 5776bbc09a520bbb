"""The queues that this worker consumes, by the keys of their lines.

Earlier versions named lines by the queue alone, without its broker. Tasks that wait under such a
name are claimed from there, before others of their queue, by whoever consumes a queue of that name.
A worker looks for them with each heartbeat; its claims name only queues that hold some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import to_us
from celery_throttle.store.script import Argument
from celery_throttle.worker.health.error_log import Complaints
from celery_throttle.worker.health.unconsumed_queues import Unconsumed, lease_of

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.messages.routing import Origin
    from celery_throttle.store.keys import QueueKeys

#: Seconds for which queues that nobody consumes are remembered after the last worker.
_REMEMBER = 86_400.0


class Queues:
    """Of one worker.

    Args:
        throttle: the app's limits.
    """

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._origin: Origin | None = None
        self._earlier: frozenset[str] = frozenset()
        self._unconsumed = Unconsumed(throttle)
        self._complaints = Complaints(
            "The server of the limits does not let this worker look after queues that no worker "
            "consumes; their tasks wait."
        )

    def use(self, origin: Origin) -> None:
        """Go on with those of a new connection to the broker."""
        self._origin = origin

    def keys(self) -> list[Sequence[QueueKeys]]:
        """For each queue, the keys under which tasks of it may wait now."""
        return [tuple(self._keys_of(name)) for name in self.names()]

    def lines(self) -> dict[str, str]:
        """The names of the queues by their keys ``lines``, now and under earlier names."""
        return {lines: name for name in self.names() for lines in self._lines_of(name)}

    def said(self, names: Sequence[str]) -> tuple[list[str], list[Argument]]:
        """Return the keys and arguments that tell ``heartbeat.lua`` this worker's queues."""
        keys, origin = self._throttle.keys, self._origin
        lines = [one for name in names for one in self._lines_of(name)]
        kinds = [str(int(origin is not None and origin.is_temporary(name))) for name in names]
        times: list[Argument] = [to_us(lease_of(self._throttle)), to_us(_REMEMBER)]
        return [keys.temporary_queues, keys.consumed_queues, *lines], [*times, "".join(kinds)]

    def hear(
        self,
        names: Sequence[str],
        earlier: Sequence[int],
        deleted: Sequence[bytes],
        others: Sequence[bytes],
    ) -> None:
        """Take note of the reply, see ``heartbeat.lua``. From any thread."""
        both = zip(names, earlier, strict=True)
        self._earlier = frozenset(name for name, is_there in both if is_there)
        self._unconsumed.see(deleted, others)

    def settle(self) -> None:
        """Deal with queues that no worker consumes. From any thread."""
        try:
            self._unconsumed.settle()
        except StoreError as error:
            self._complaints.log(error)

    def names(self) -> Sequence[str]:
        """The names of the queues."""
        return () if self._origin is None else self._origin.names()

    def _keys_of(self, name: str) -> Iterator[QueueKeys]:
        if name in self._earlier:
            yield self._throttle.keys.queue(name)
        yield self._throttle.keys.queue(self._throttle.qualify(name))

    def _lines_of(self, name: str) -> tuple[str, str]:
        """Under its name now, and under its earlier name."""
        keys = self._throttle.keys
        return keys.queue(self._throttle.qualify(name)).lines, keys.queue(name).lines
