"""The workers that live, of which this is one, and the limits in force.

By the same call this finds out whether a server that was lost is back, in a thread of its own: one
that does not answer takes its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import LimitError, StoreError
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.store import definitions
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.worker.health.worker_count import FleetSize

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.queues import Queues

#: Seconds between two tries while the server is lost: at first, and where that happens often.
TRY, SELDOM = 0.5, 2.0

#: Seconds between two beats at most: by what they told a worker goes when the server is lost.
BEAT = 10.0

#: Seconds after which a server that was lost counts as steady again.
STEADY = 30.0

#: Definitions that are told with each beat; where there are more, those of the code's names. The
#: weights are counted with them.
_MOST = 1000


#: What is told of pauses begins so; no limit's name has a space.
_PAUSE = b"pause "


class Fleet:
    """One worker's place in the fleet.

    Args:
        throttle: the app's limits.
        worker: this worker's name.
        back: called, from the thread, when a server answers that was lost.
        recall: called, from the thread, when tasks were set aside that this worker may know.
        state_db: path of the file in which Celery keeps this worker's state, if it does.
        queues: those that it consumes.

    Attributes:
        size: the number of workers, as far as it is known.
        aside: how many tasks were set aside then.
    """

    def __init__(
        self,
        throttle: Throttle,
        worker: str,
        *,
        back: Callable[[], None],
        recall: Callable[[], None],
        state_db: str | None,
        queues: Queues,
    ) -> None:
        self._throttle = throttle
        self._worker = worker
        self._back = back
        self._recall = recall
        self._queues = queues
        self._told: Mapping[bytes, bytes] = {}
        self._heard_at = 0.0
        self._stir = threading.Event()
        self._over = False
        self._lost = False
        self._pause = TRY
        self._back_at = 0.0
        self._thread: threading.Thread | None = None
        self.size = FleetSize(state_db, throttle.settings.workers)
        self.aside = 0

    def start(self) -> None:
        """Join, once; the server need not answer."""
        if self._thread is None:
            if self._throttle.limits:
                self._beat()
            else:  # nothing here waits for what it tells, so the worker does not wait for it
                self._stir.set()
            self._thread = threading.Thread(target=self._keep, name="throttle-fleet", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Leave: the others may use more."""
        self._over = True
        self._stir.set()
        with suppress(StoreError):  # then its lease runs out
            self._call(0, self._queues.names())

    def lose(self) -> None:
        """The server is lost: try until it is back."""
        if self._lost:
            return
        steady = time.monotonic() - self._back_at > STEADY
        self._pause = TRY if steady else min(2 * self._pause, SELDOM)
        self._lost = True
        self._stir.set()

    def limits(self) -> dict[LimitRef, Limits]:
        """Those in force when the server last answered: of names, and of keys with their own."""
        found = {LimitRef(name, None): own for name, own in self._throttle.limits.items()}
        for field, packed in self._told.items():
            if field.startswith(_PAUSE):
                continue
            name, keyed, key = field.decode().partition(":")
            with suppress(LimitError):  # of a version of the code that knows more
                found[LimitRef(name, key if keyed else None)] = definitions.unpack(packed)
        return found

    def pauses(self) -> dict[str, float]:
        """Names that are paused as a whole, and until when (monotonic): of the code's limits.

        As it was when the server last answered. Infinity: until somebody resumes it.
        """
        return {
            field[len(_PAUSE) :].decode(): self._heard_at + pause_to_seconds(int(us))
            for field, us in self._told.items()
            if field.startswith(_PAUSE)
        }

    def _keep(self) -> None:
        every = min(self._throttle.settings.lease / 3, BEAT)
        while not self._over:
            if not self._lost:
                self._stir.wait(every)
                self._stir.clear()
            if self._lost:
                time.sleep(self._pause)
            if self._over or not self._beat():
                continue
            if self._lost:
                self._lost, self._back_at = False, time.monotonic()
                self._back()
            self._queues.settle()
            if self.aside:
                self._recall()

    def _beat(self) -> bool:
        """Whether the server answered."""
        lease = self._throttle.settings.lease
        try:
            names = self._queues.names()
            size, self.aside, consumed, *told = self._call(to_us(lease), names)
        except StoreError:
            return False
        self._told = dict(zip(told[::2], told[1::2], strict=True))
        self._heard_at = time.monotonic()
        self._queues.hear(names, *consumed)
        self.size.hear(size)
        return True

    def _call(self, lease_us: int, queues: Sequence[str]) -> list[Any]:
        keys, names = self._throttle.keys, self._throttle.limits
        pauses = [keys.pause(LimitRef(name, None)) for name in names]
        lines, about = self._queues.said(queues)
        args: list[Argument] = ["", self._worker, lease_us, _MOST, *about, *names]
        reply: list[Any] = self._throttle.store.probe(
            Call(
                script("heartbeat"),
                [keys.membership, keys.limits, keys.quarantine, *lines, *pauses],
                args,
            )
        )
        return reply
