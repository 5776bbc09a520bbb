"""Tasks that this worker has no code for are left to one that has: a deploy, or its way back.

They keep their places in their lines, but are set aside until a worker recalls them that can run
them, so that nothing behind them is held up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.messages import packing
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.worker.health.error_log import Complaints

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.claims.claims import Claim, Claims

logger = get_logger(__name__)

#: Seconds between two reports of the tasks that wait here for other code; tasks that each names.
REPORT, NAMED = 60.0, 10

#: In place of a version: nobody can read it, so nobody recalls it.
_DAMAGED = "damaged"


class Aside:
    """Of one worker.

    Args:
        throttle: the app's limits.
        claims: what this worker holds.
        names: of the tasks it knows.
        queues: the queues it consumes, by their keys ``lines``.
    """

    def __init__(
        self,
        throttle: Throttle,
        claims: Claims,
        names: Callable[[], Collection[str]],
        queues: Callable[[], Mapping[str, str]],
    ) -> None:
        self._throttle = throttle
        self._claims = claims
        self._names = names
        self._queues = queues
        self._reported: set[str] = set()
        self._complaints = Complaints(
            "The server of the limits does not let tasks that were set aside go back to their "
            "lines; they wait, and this worker tries again."
        )
        self._report_at = 0.0

    def put(self, claim: Claim, packed: bytes, name: str | None) -> None:
        """Set a task aside: its name, None if even that cannot be read."""
        version = packing.version_of(packed)
        if not name and version in packing.VERSIONS:
            version = _DAMAGED
        label = f"{version} {name or ''}"
        if label not in self._reported:
            self._reported.add(label)
            logger.warning("No code here for %s: left to a worker that has it", _what(label))
        self._claims.set_aside(claim, label)

    def put_off(self, claim: Claim) -> None:
        """Set a task aside until the next beat of a worker that is up."""
        self._claims.set_aside(claim, f"{packing.VERSIONS[-1]} ")

    def recall(self) -> None:
        """Let those that this worker can run go back to their lines, and report the others.

        From any thread.
        """
        try:
            self._recall()
        except StoreError as error:
            self._complaints.log(error)

    def _recall(self) -> None:
        keys, store = self._throttle.keys, self._throttle.store
        names, queues = self._names(), self._queues()
        others: Counter[tuple[str, str]] = Counter()
        cursor: Argument = "0"
        while cursor != b"0":
            cursor, rows = store.run(Call(script("list_quarantined"), [keys.quarantine], [cursor]))
            ids = []
            for task_id, packed_label, lines in rows:
                queue, label = queues.get(lines.decode()), packed_label.decode()
                if queue is not None and _is_known(label, names):
                    ids.append(task_id)
                elif queue is not None:
                    others[queue, label] += 1
            if ids:
                store.run(Call(script("recall_quarantined"), [keys.quarantine], ["", *ids]))
        self._report(others)

    def _report(self, others: Counter[tuple[str, str]]) -> None:
        """Warn of the tasks that no code here can run: how many, by queue and name."""
        if not others or time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT
        found = [
            f"in queue {queue} {count} {_what(label)}"
            for (queue, label), count in others.most_common(NAMED)
        ]
        more = len(others) - len(found)
        logger.warning(
            "Tasks wait for a worker that has code for them, as this one has none: %s%s",
            ", ".join(found),
            f", and {more} others" if more else "",
        )


def _is_known(label: str, names: Collection[str]) -> bool:
    version, _, name = label.partition(" ")
    return version in packing.VERSIONS and (not name or name in names)


def _what(label: str) -> str:
    version, _, name = label.partition(" ")
    return f"tasks {name}" if name else f"messages of version {version!r}"
