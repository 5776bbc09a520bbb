"""When a worker asks for tasks that wait in lines: when one is due and a process is free for it.

Laws at stake here: *never idle*, and *never in the way* (a task is taken only for a free process;
where tasks queue for processes, the line queues with them).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.admission.recovery import RETRY_SECONDS
from celery_throttle.worker.alarm import Alarm
from celery_throttle.worker.claims.call import SOON
from celery_throttle.worker.pool import LOOK, scale_up

if TYPE_CHECKING:
    from celery_throttle.worker.claims.call import Claiming
    from celery_throttle.worker.claims.claims import Claims, Taken
    from celery_throttle.worker.claims.revoked import Revoked
    from celery_throttle.worker.claims.slots import TaskSlots
    from celery_throttle.worker.health.backoff import Pace
    from celery_throttle.worker.health.outage import Outage
    from celery_throttle.worker.pool import Processes
    from celery_throttle.worker.timers import Timers

#: Seconds a settled claim may stay unreported.
FLUSH = 0.020

#: Seconds from one ask to the next within which slots that are given back are told together.
BUNCH = 0.002

#: Seconds between two asks of a worker that is woken again and again.
CALM = 0.005

#: Seconds after an outage in which no worker is taken for dead.
GRACE = 5.0


class Asking:
    """Asks, for one worker.

    With an event loop all of this runs in its thread, save what is said to come from elsewhere.
    Without one, the thread of the timers asks.

    Args:
        consumer: Celery's.
        timers: of the worker.
        claiming: makes the call.
        claims, slots: what this worker holds.
        revoked: takes revoked tasks out of their lines.
        outage: knows whether the server is lost.
        pace: of calls to the server.
        listen: called at each ask: keeps the worker's subscription.
    """

    def __init__(
        self,
        consumer: Any,
        timers: Timers,
        claiming: Claiming,
        claims: Claims,
        slots: TaskSlots,
        *,
        revoked: Revoked,
        outage: Outage,
        pace: Pace,
        listen: Callable[[Any], None],
    ) -> None:
        self._c = consumer
        self._timers = timers
        self._claiming = claiming
        self._claims = claims
        self._slots = slots
        self._revoked = revoked
        self._outage = outage
        self._pace = pace
        self._listen = listen
        self._alarm = Alarm(timers, lambda: pace.in_turn(self._look))
        self._flush = Alarm(timers, self._tell)
        self._release = Alarm(timers, self._tell)
        self._running = False
        self._thread = 0
        self._queued = False
        self._queued_since = 0.0
        self._short = False

    def start(self, processes: Processes, hand_over: Callable[[Taken], None]) -> None:
        """Begin, or go on over a new connection to the broker.

        Args:
            processes: those of the pool.
            hand_over: called with each task that was taken.
        """
        self._processes = processes
        self._hand_over = hand_over
        self._thread = threading.get_ident()
        self._queued = False  # Celery forgets who waits for a process
        self._running = True

    def stop(self) -> None:
        """Take no more. What is settled and given back from now on is told at once."""
        self._running = False
        for alarm in (self._alarm, self._flush, self._release):
            alarm.cancel()

    def ask_in(self, seconds: float) -> None:
        """A task may be due then."""
        self._alarm.set(seconds)

    def on_wake(self) -> None:
        """A line has begun elsewhere."""
        calm = time.monotonic() - self._claiming.heard < CALM
        self._alarm.set(CALM if calm else 0)

    def on_released(self) -> None:
        """Somebody may wait for the slot. Comes from whatever thread ended the task."""
        if not self._running:
            self._claiming.tell()
        elif (
            self._c.hub is not None
            and threading.get_ident() == self._thread
            and not self._processes.inline  # a task that ends would run the next before it is over
            and self._room() > 0
            and time.monotonic() - self._claiming.heard > BUNCH
        ):
            self._tell()
        else:  # together with others that end now
            self._release.set(0)

    def on_settled(self) -> None:
        """A claim is done with. Comes from whatever thread acknowledged the task."""
        if self._running:
            self._flush.set(FLUSH)
        else:
            self._claiming.tell()

    def _look(self) -> None:
        if self._room() > 0:
            self._ask()
        elif self._running and not self._queued:
            self._queued = True
            self._queued_since = time.monotonic()
            if self._short:
                self._timers.call_after(HORIZON, self._look_for_more)
            self._processes.when_free(self._on_turn)

    def _look_for_more(self) -> None:
        waited = time.monotonic() - self._queued_since
        if self._queued and self._running and waited > HORIZON / 2:
            scale_up(self._c.controller)

    def _on_turn(self) -> None:
        self._queued = False
        if self._room() > 0:
            self._pace.in_turn(self._look)
        elif self._running:
            # The free processes are for what is booked, and no one tells when that has ended.
            self._alarm.set(LOOK)

    def _room(self) -> int:
        if not self._running or _is_told_to_stop():
            return 0
        return self._processes.free() - len(self._claims.booked())

    def _soon(self) -> int:
        """Processes that are free in a moment, if tasks from lines go on as fast as they go now.

        A task that was taken for one starts within 20 ms, or goes back to its line. Where other
        tasks wait for a process, they are theirs.
        """
        if self._processes.contended():
            return 0
        return int(self._claims.recent() * SOON / HORIZON)

    def _tell(self) -> None:
        self._pace.in_turn(self._tell_now)

    def _tell_now(self) -> None:
        """Tell what ended. A slot that is given back is for a task that is asked for at once."""
        if self._slots.unreported() and self._room() > 0:
            self._ask()
        elif self._slots.unreported() or self._claims.unreported():
            self._claiming.tell()

    def _ask(self) -> None:
        """Take what is due for the free processes."""
        for task in self._revoked.withdraw():
            self._hand_over(task)
        asked = self._claiming.ask(self._room, self._soon)
        if asked is None:
            # When the server is back, this is set to 0.
            self._alarm.set(RETRY_SECONDS if self._outage.is_on else CALM)
            return
        self._short = bool(asked.tasks) and not asked.wait  # more are due than could be taken
        for task in asked.tasks:
            self._hand_over(task)
        # After an outage a worker that lives may not have had its turn to say so.
        if asked.dead and time.monotonic() - self._outage.ended > GRACE:
            self._claims.reclaim(asked.dead)
        self._listen(self._c.hub)
        self._alarm.set(asked.wait)


def _is_told_to_stop() -> bool:
    """Whether a signal has told Celery to stop. Its loop may come to that seconds later."""
    told = (state.should_stop, state.should_terminate)
    return any(code is not None and code is not False for code in told)  # 0 is told, too
