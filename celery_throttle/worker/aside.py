"""Tasks that this worker has no code for are left to one that has: a deploy, or its way back.

They keep their places in their lines, but are set aside until a worker recalls them that can run
them, so that nothing behind them is held up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.scripts import Argument, Call, script
from celery_throttle.worker import messages
from celery_throttle.worker.complaints import Complaints

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.claims import Claim, Claims

logger = get_logger(__name__)

#: In place of a version: nobody can read it, so nobody recalls it.
_DAMAGED = "damaged"


class Aside:
    """Of one worker.

    Args:
        throttle: the app's limits.
        claims: what this worker holds.
        names: of the tasks it knows.
        queues: keys ``lines`` of the queues it consumes.
    """

    def __init__(
        self,
        throttle: Throttle,
        claims: Claims,
        names: Callable[[], Collection[str]],
        queues: Callable[[], Collection[str]],
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

    def put(self, claim: Claim, packed: bytes, name: str | None) -> None:
        """Set a task aside: its name, None if even that cannot be read."""
        version = messages.version_of(packed)
        if not name and version in messages.VERSIONS:
            version = _DAMAGED
        label = f"{version} {name or ''}"
        if label not in self._reported:
            self._reported.add(label)
            what = f"tasks {name}" if name else f"messages of version {version!r}"
            logger.warning("No code here for %s: left to a worker that has it", what)
        self._claims.set_aside(claim, label)

    def put_off(self, claim: Claim) -> None:
        """Set a task aside until the next beat of a worker that is up."""
        self._claims.set_aside(claim, f"{messages.VERSIONS[-1]} ")

    def recall(self) -> None:
        """Let those that this worker can run go back to their lines. From any thread."""
        try:
            self._recall()
        except StoreError as error:
            self._complaints.log(error)

    def _recall(self) -> None:
        keys, store = self._throttle.keys, self._throttle.store
        names, queues = self._names(), self._queues()
        cursor: Argument = "0"
        while True:
            cursor, rows = store.run(Call(script("asides"), [keys.aside], [cursor]))
            ids = [
                task_id
                for task_id, label, lines in rows
                if lines.decode() in queues and _is_known(label.decode(), names)
            ]
            if ids:
                store.run(Call(script("recall"), [keys.aside], ["", *ids]))
            if cursor == b"0":
                return


def _is_known(label: str, names: Collection[str]) -> bool:
    version, _, name = label.partition(" ")
    return version in messages.VERSIONS and (not name or name in names)
