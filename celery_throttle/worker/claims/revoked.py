"""Takes revoked tasks out of their lines before quota is spent on them.

Celery tells every worker what is revoked: task ids, and stamped headers with their values. The ids
are looked up among the waiting tasks. For stamps the waiting messages are read through, some at
each ask, each time a stamp is revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from celery.worker import state

from celery_throttle.errors import StoreError
from celery_throttle.messages import packing
from celery_throttle.store.client import Store
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.worker.claims.claims import Claims, Taken
from celery_throttle.worker.health.error_log import Complaints

#: Ids looked up in one call.
_MANY = 1000


class Revoked:
    """What is revoked, and of that, what has been looked for.

    Args:
        store: the server.
        claims: what this worker holds.
        lease_us: how long it holds them unseen, in microseconds.
        queue_keys: the keys of the queues it consumes, four each.
    """

    def __init__(
        self, store: Store, claims: Claims, lease_us: int, queue_keys: Callable[[], list[str]]
    ) -> None:
        self._store = store
        self._claims = claims
        self._lease = lease_us
        self._queue_keys = queue_keys
        self._complaints = Complaints(
            "The server of the limits does not let revoked tasks leave their lines; they wait, and "
            "this worker tries again."
        )
        self._count = 0
        self._ids: set[str] = set()
        self._stamps = ""
        self._search: Iterator[list[str]] = iter(())

    def withdraw(self) -> list[Taken]:
        """Tasks that are newly revoked, taken without quota."""
        try:
            taken = self._take(self._new_ids())
            return taken + self._take(self._new_stamped())
        except StoreError as error:
            self._complaints.log(error)
            self._count, self._stamps = 0, ""
            self._ids.clear()
            return []

    def _new_ids(self) -> list[str]:
        count = len(state.revoked)
        # Full, it stays as long as it is, whatever is added.
        if count == self._count and count < state.REVOKES_MAX:
            return []
        self._count = count
        current = {str(task_id) for task_id in state.revoked}
        new = current - self._ids
        self._ids = current
        return sorted(new)

    def _new_stamped(self) -> list[str]:
        current = repr(state.revoked_stamps)
        if current != self._stamps:
            self._stamps = current
            self._search = self._find_stamped() if state.revoked_stamps else iter(())
        return next(self._search, [])

    def _find_stamped(self) -> Iterator[list[str]]:
        for waiting in self._queue_keys()[1::4]:
            cursor: Argument = "0"
            while True:
                cursor, found = self._store.run(Call(script("scan_messages"), [waiting], [cursor]))
                yield [task_id.decode() for task_id, packed in found if _is_revoked(packed)]
                if cursor == b"0":
                    break

    def _take(self, ids: Sequence[str]) -> list[Taken]:
        taken: list[Taken] = []
        names = [*self._claims.keys, *self._queue_keys()]
        for start in range(0, len(ids), _MANY):
            some = ids[start : start + _MANY]
            first = self._claims.reserve(len(some))
            try:
                args: list[Argument] = ["", self._claims.worker, self._lease, first, *some]
                rows = self._store.run(Call(script("withdraw"), names, args))
            except StoreError:
                self._claims.doubt(range(first, first + len(some)))
                raise
            taken += map(self._claims.receive, rows)
        return taken


def _is_revoked(packed: bytes) -> bool:
    """Whether a waiting message carries a revoked stamp, as Celery's request would find."""
    try:
        headers = packing.headers(packed)
    except packing.UnreadableMessageError:
        return False
    stamps = headers.get("stamps") or {}
    for name in headers.get("stamped_headers") or ():
        revoked = state.revoked_stamps.get(name)
        if revoked is not None and name in stamps:
            revoked_values = revoked if isinstance(revoked, (list, tuple, set)) else [revoked]
            values = stamps[name] if isinstance(stamps[name], (list, tuple)) else [stamps[name]]
            if any(value in revoked_values for value in values):
                return True
    return False
