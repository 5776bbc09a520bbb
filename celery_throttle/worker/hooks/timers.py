"""Timers that are on time, whatever else the worker's loop has to do.

Law at stake here: *never idle*. Celery's timers may run up to a second late.

* With an event loop, kombu fires at most ten timers in one round of the loop. If more are due, it
  then waits for the broker for up to a second. It also waits although ``call_soon`` was called in
  that round. See "A fault of kombu" in ``docs/how-to/pools.md``.
* Without an event loop, Celery's timer thread sleeps until the next call that it knows of, for up
  to a second. It does not notice a call that is added meanwhile for an earlier time.

So calls wait in a heap here. kombu's loop makes those that are due whenever it fires its own
timers; without an event loop, a thread makes them.
"""

from __future__ import annotations

import heapq
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar

from celery.utils.log import get_logger

logger = get_logger(__name__)


def make_timers(consumer: Any) -> Timers:
    """Make the timers for Celery's consumer, with its event loop or without one."""
    if consumer.hub is not None:
        return LoopTimers(consumer.hub)
    if getattr(consumer.pool, "is_green", False):
        return _GreenTimers(type(consumer.timer)())
    return ThreadTimers()


class Timers:
    """The timers of one worker. Thread-safe.

    Calls are made in the order of their times; calls of the same time in the order of addition.
    """

    #: Whether a call may block: nothing but its own greenlet waits.
    may_block: ClassVar[bool] = False

    def __init__(self) -> None:
        #: Entries: the time of a call, a number, the function, and its arguments. The function is
        #: None if the call was cancelled.
        self._heap: list[list[Any]] = []
        self._numbers = count()
        self._lock = threading.Lock()

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> Any:
        """Call a function after some seconds. Returns an entry for :meth:`cancel`."""
        entry = [time.monotonic() + max(0.0, seconds), next(self._numbers), call, args]
        with self._lock:
            heapq.heappush(self._heap, entry)
            is_first = self._heap[0] is entry
        if is_first:
            self._wake_up()
        return entry

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Call a function as soon as possible, but not from within this method."""
        self.call_after(0.0, call, args)

    def cancel(self, entry: Any) -> None:
        """Cancel a call that was not made yet."""
        entry[2] = None

    def attach(self) -> None:
        """Start, or continue after the event loop was reset. Called from the loop's thread."""

    def close(self) -> None:
        """Make no more calls: the worker has ended."""

    def _wake_up(self) -> None:
        """Have whoever makes the calls look for the time of the first one again."""

    def _seconds_to_first(self) -> float | None:
        """Return the seconds until the first call; None if there is none."""
        with self._lock:
            while self._heap and self._heap[0][2] is None:
                heapq.heappop(self._heap)
            return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None

    def _make_calls(self, propagate: tuple[type[BaseException], ...] = ()) -> bool:
        """Make the calls that are due now, but not the calls that these add.

        Returns whether there were any.
        """
        now, any_due = time.monotonic(), False
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > now:
                    return any_due
                _, _, call, args = heapq.heappop(self._heap)
            any_due = True
            try:
                if call is not None:
                    call(*args)
            except propagate:
                raise
            except Exception:
                logger.exception("Error in timer")


class LoopTimers(Timers):
    """Timers in kombu's event loop, which fires its own timers in each round before it waits.

    The loop waits no longer than until the next call or timer is due. That serves all timers of the
    worker: timers of tasks with a countdown may delay ours, and the broker sends the next message
    only after an acknowledgement, which may be delayed as well.
    """

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub
        self._thread = 0
        self._is_making_calls = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)  # neither may block

    def attach(self) -> None:
        """See :class:`Timers`."""
        hub = self._hub
        if "fire_timers" not in vars(hub):
            self._fire_timers = hub.fire_timers
            hub.fire_timers = self._fire_all
        self._thread = threading.get_ident()
        hub.add_reader(self._reader, self._on_wakeup)

    def close(self) -> None:
        """See :class:`Timers`."""
        self._reader.close()
        self._writer.close()

    def _wake_up(self) -> None:
        if threading.get_ident() != self._thread:  # else the loop comes here before it waits
            with suppress(OSError):  # it was closed, or is full
                self._writer.send(b"\0")

    def _on_wakeup(self) -> None:
        with suppress(OSError):
            self._reader.recv(4096)

    def _fire_all(self, **options: Any) -> float:
        """Fire kombu's timers and make our calls; return the seconds that the loop may wait."""
        hub = self._hub
        delay: float = self._fire_timers(**options)
        any_due = False
        if not self._is_making_calls:  # else one of these calls runs the loop
            first = self._seconds_to_first()
            if first == 0.0:
                self._is_making_calls = True
                try:
                    any_due = self._make_calls(tuple(hub.propagate_errors))
                finally:
                    self._is_making_calls = False
            elif first is not None:
                delay = min(delay, first)
        # After each round Celery changes the prefetch count, for one. Nor does kombu care here for
        # calls that are ready for the next round.
        if any_due or hub._ready:  # noqa: SLF001  # as above
            return 0.0
        timers = hub.timer._queue  # noqa: SLF001  # kombu offers only a sorted copy otherwise
        return max(0.0, min(delay, timers[0][0] - time.monotonic())) if timers else delay


class ThreadTimers(Timers):
    """Timers in a thread, for a worker without an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def attach(self) -> None:
        """See :class:`Timers`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="throttle-timers", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """See :class:`Timers`."""
        self._is_closed = True
        self._wakeup.set()

    def _wake_up(self) -> None:
        self._wakeup.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._wakeup.wait(self._seconds_to_first())
            self._wakeup.clear()
            self._make_calls()


class _GreenTimers(Timers):
    """Timers of gevent and eventlet, which make each call on time, in a greenlet of its own.

    A call may wait for a free greenlet of the pool, and must not hold up the other calls. Celery
    5.5 clears its own timer when it loses the broker, in the middle of calls that are being made,
    so this class has another one.
    """

    may_block = True

    def __init__(self, timer: Any) -> None:
        super().__init__()
        self._timer = timer

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> Any:
        """See :class:`Timers`."""
        return self._timer.call_after(seconds, call, args)

    def cancel(self, entry: Any) -> None:
        """See :class:`Timers`."""
        self._timer.cancel(entry)

    def close(self) -> None:
        """See :class:`Timers`."""
        self._timer.clear()


class Alarm:
    """Calls a function once, at the earliest of the times set since its last call. Thread-safe."""

    def __init__(self, timers: Timers, function: Callable[[], None]) -> None:
        self._timers = timers
        self._function = function
        self._entry: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def set(self, seconds: float) -> None:
        """Call the function after some seconds, unless it is set to an earlier time."""
        seconds = max(0.0, seconds)
        at = time.monotonic() + seconds
        with self._lock:
            if self._entry is not None:
                if self._at <= at:
                    return
                self._timers.cancel(self._entry)
            self._at = at
            self._entry = self._timers.call_after(seconds, self._ring)

    def _ring(self) -> None:
        with self._lock:
            self._entry = None
        self._function()

    def cancel(self) -> None:
        """Make no call until the alarm is set again."""
        with self._lock:
            if self._entry is not None:
                self._timers.cancel(self._entry)
                self._entry = None
