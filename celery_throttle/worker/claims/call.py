"""The one call of a worker, ``claim.lua``: renew its lease, settle what is done, take due tasks.

Laws at stake here: *never lost* (what a call that failed was to tell is told by the next, what it
may have taken is given back, whatever the error: the server takes nothing back of a script that
ends in the middle) and *never idle* (slots are booked up to 20 ms ahead, so that pacing
has no gaps).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.health.error_log import Complaints

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.store.keys import QueueKeys
    from celery_throttle.worker.claims.claims import Claims, Taken
    from celery_throttle.worker.claims.slots import TaskSlots
    from celery_throttle.worker.health.backoff import Pace
    from celery_throttle.worker.pool import Processes
    from celery_throttle.worker.queues import Queues
    from celery_throttle.worker.waiting.policy import WaitingPolicy

#: Seconds between two calls for tasks at most, with nothing waiting.
IDLE = 1.0

#: Tasks that one call takes at most: the server does nothing else meanwhile. A worker with more
#: free processes calls again at once.
MOST = 200

#: Seconds within which a process is about to be free, where tasks end fast: tasks are taken for it
#: as well, so that a call takes several.
SOON = HORIZON / 4

#: Seconds that such a task may start ahead. A limit that is slower binds, and its tasks are taken
#: for free processes only: none of them might have to go back.
MOMENT = 0.001

#: Seconds until a call is tried again that the server replied an error to.
REFUSED = 1.0


class Asked(NamedTuple):
    """What a call brought: seconds until the next, a worker that is gone or "", and tasks.

    After an error that the server replied there is nothing but the first.
    """

    wait: float
    dead: str
    tasks: list[Taken]


class Claiming:
    """Makes the call; one at a time, from whatever thread.

    Args:
        throttle: the app's limits.
        claims, slots: what this worker holds.
        queues: those that it consumes.
        pace: of calls to the server.

    Attributes:
        heard: when, by the monotonic clock, the server last answered.
    """

    def __init__(
        self, throttle: Throttle, claims: Claims, slots: TaskSlots, queues: Queues, pace: Pace
    ) -> None:
        self._throttle = throttle
        self._claims = claims
        self._slots = slots
        self._queues = queues
        self._pace = pace
        self._complaints = Complaints(
            "The server of the limits does not hand out tasks that wait; they stay in their lines, "
            "and this worker tries again every second."
        )
        self._slot_complaints = Complaints(
            "The server of the limits does not renew the slots of tasks that run; when their "
            "leases run out, other tasks take them as well."
        )
        self._alone = threading.Lock()
        self._registered = False
        self._first = 0
        self.heard = 0.0

    def use(self, waiting: WaitingPolicy, processes: Processes) -> None:
        """Go on with those of a new connection to the broker."""
        self._waiting = waiting
        self._processes = processes

    def tell(self) -> None:
        """Take nothing, but settle, give slots back and renew the lease."""
        self.ask(lambda: 0)

    def ask(self, room: Callable[[], int], soon: Callable[[], int] = int) -> Asked | None:
        """Take what is due; None if the server could not be asked.

        Args:
            room: free processes.
            soon: those that will be free within :data:`SOON`, if any is now.
        """
        with self._alone:
            free = min(MOST, max(0, room()))
            return self._ask_alone(min(MOST, free + soon()) if free else 0, free)

    def renew_slots(self) -> None:
        """Let the slots of the tasks that run be theirs for one lease more."""
        with self._alone:
            lease = self._throttle.settings.lease
            try:
                self._throttle.run_plan(self._slots.renewal(self._throttle.plans, lease))
            except StoreError as error:  # the next one may pass
                self._slot_complaints.log(error)

    def finish(self) -> None:
        """Wait until a call that is on its way has brought what it brings."""
        with self._alone:
            pass

    def queue_keys(self) -> list[str]:
        """The keys of the queues that this worker consumes, four each."""
        return _flat(self._queues.keys())

    def _queue_keys_in_turn(self) -> list[str]:
        """The same, another queue first each time.

        Else the last ones had no turn where more is due than there are free processes.
        """
        queues = self._queues.keys()
        self._first = (self._first + 1) % max(1, len(queues))
        return _flat(queues[self._first :] + queues[: self._first])

    def _ask_alone(self, room: int, free: int) -> Asked | None:
        if self._throttle.store.breaker.is_open:  # somebody else finds out when the server is back
            return None
        keys = self._throttle.keys
        names = [keys.limits, keys.unacknowledged, *self._claims.keys]
        if room:
            names += self._queue_keys_in_turn()
        settled, releases = self._claims.take_settled(), self._slots.take_releases()
        first = self._claims.reserve(room)
        args: list[Argument] = [
            "",
            self._claims.worker,
            keys.wakeup_channel(self._claims.worker),
            to_us(self._throttle.settings.lease),
            room,
            # While tasks queue for processes, one booked ahead might find none when its slot comes.
            0 if self._processes.contended() else to_us(HORIZON),
            first,
            to_us(IDLE),
            len(settled),
            len(releases),
            int(self._registered),
            free,
            to_us(MOMENT),
            *settled,
            *chain.from_iterable(releases),
            *self._waiting.acknowledged(),
        ]
        began = time.monotonic()
        asked = range(0)
        try:
            self._claims.give_back_unsure()
            asked = range(first, first + room)
            reply: list[Any] = self._throttle.store.run(Call(script("claim"), names, args))
        except StoreError as error:
            self._complaints.log(error)
            self._claims.settle_again(settled)
            self._slots.release_again(releases)
            self._claims.doubt(asked)
            if isinstance(error, StoreUnavailableError):
                return None
            return Asked(REFUSED, "", [])
        finally:
            self._pace.spent(began)
        self.heard = time.monotonic()
        wait, dead, *rows = reply
        tasks = [self._claims.receive(row) for row in rows]
        self._registered = wait < 0
        if self._registered:
            self._register_missing()
        # Without room the reply does not say when to ask.
        return Asked(max(0, wait) / MICROSECONDS if room else 0.0, dead.decode(), tasks)

    def _register_missing(self) -> None:
        refs = [LimitRef(name, None) for name in self._throttle.plans.limits]
        with suppress(StoreError):  # then the gate finds what is missing, task by task
            self._throttle.run_plan(self._throttle.plans.register_missing(refs))


def _flat(queues: Sequence[Sequence[QueueKeys]]) -> list[str]:
    return [key for names in queues for keys in names for key in keys]
