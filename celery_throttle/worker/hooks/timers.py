"""Timers that are on time, whatever else the worker's loop has to do.

Law at stake here: *never idle*. Celery's timers may run up to a second late.

* With an event loop, kombu fires at most ten timers in one round of the loop. If more are due, it
  then waits for the broker for up to a second. It also waits although ``call_soon`` was called in
  that round. See "A fault of kombu" in ``docs/how-to/pools.md``.
* Without an event loop, Celery's timer thread sleeps until the next call that it knows of, for up
  to a second. It does not notice a call that is added meanwhile for an earlier time.

So calls wait in a heap here. A single timer of the loop, or a thread, makes all that are due.
"""

from __future__ import annotations

import heapq
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from celery.utils.log import get_logger

logger = get_logger(__name__)


class Timers(Protocol):
    """The timers of one worker. Thread-safe."""

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> Any:
        """Call a function after some seconds. Returns an entry for :meth:`cancel`."""

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Call a function as soon as possible, but not from within this method."""

    def cancel(self, entry: Any) -> None:
        """Cancel a call that was not made yet."""

    def attach(self) -> None:
        """Start, or continue after the event loop was reset. Called from the loop's thread."""

    def close(self) -> None:
        """Make no more calls: the worker has ended."""


def make_timers(consumer: Any) -> Timers:
    """Make the timers for Celery's consumer, with its event loop or without one."""
    if consumer.hub is not None:
        return LoopTimers(consumer.hub)
    if getattr(consumer.pool, "is_green", False):
        return _GreenTimers(consumer.timer)
    return ThreadTimers()


class _TimerEntry:
    """A call that waits for its time."""

    __slots__ = ("args", "call", "cancelled")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args
        self.cancelled = False


class _TimerHeap:
    """Calls in the order of their times; calls of the same time in the order of addition."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _TimerEntry]] = []
        self._numbers = count()
        self._lock = threading.Lock()

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> _TimerEntry:
        entry = _TimerEntry(call, args)
        at = time.monotonic() + max(0.0, seconds)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._numbers), entry))
            is_first = self._heap[0][2] is entry
        if is_first:
            self._arm()
        return entry

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self.call_after(0.0, call, args)

    def cancel(self, entry: _TimerEntry) -> None:
        entry.cancelled = True

    def _arm(self) -> None:
        """Ensure that the first call is made at its time."""
        raise NotImplementedError

    def _first_at(self) -> float | None:
        """Return the monotonic time of the first call."""
        with self._lock:
            while self._heap and self._heap[0][2].cancelled:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def _make_calls(self, propagate: tuple[type[BaseException], ...] = ()) -> None:
        """Make the calls that are due now, but not the calls that these add."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > now:
                    return
                _, _, entry = heapq.heappop(self._heap)
            if entry.cancelled:
                continue
            try:
                entry.call(*entry.args)
            except propagate:
                raise
            except Exception:
                logger.exception("Error in timer")


class LoopTimers(_TimerHeap):
    """Timers in kombu's event loop."""

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub
        self._thread = 0
        self._timer: Any = None
        self._timer_at = 0.0
        self._is_making_calls = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)  # neither may block
        self._is_woken_up = False

    def attach(self) -> None:
        """See :class:`Timers`."""
        cap_loop_wait(self._hub)
        self._thread = threading.get_ident()
        # Celery cancels a timer that was set while it connected, if that fails.
        self._timer = None
        self._hub.add_reader(self._reader, self._on_wakeup)
        self._arm()

    def close(self) -> None:
        """See :class:`Timers`."""
        self._reader.close()
        self._writer.close()

    def _arm(self) -> None:
        at = None if self._is_making_calls else self._first_at()
        if at is None:
            return
        if threading.get_ident() != self._thread or at <= time.monotonic():
            self._wake_up()
        elif self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._hub.timer.cancel(self._timer)
            self._timer_at = at
            self._timer = self._hub.call_at(at, self._on_time)

    def _wake_up(self) -> None:
        """Have the loop call :meth:`_on_wakeup` at once. Thread-safe."""
        with self._lock:
            if self._is_woken_up:
                return
            self._is_woken_up = True
        with suppress(OSError):  # it was closed
            self._writer.send(b"\0")

    def _on_wakeup(self) -> None:
        # In this order, or a byte that is sent in between might be lost.
        with suppress(OSError):
            self._reader.recv(64)
        with self._lock:
            self._is_woken_up = False
        self._run()

    def _on_time(self) -> None:
        self._timer = None
        self._run()

    def _run(self) -> None:
        if self._is_making_calls:  # one of these calls runs the loop
            return
        self._is_making_calls = True
        try:
            self._make_calls(tuple(self._hub.propagate_errors))
        finally:
            self._is_making_calls = False
            self._arm()


class ThreadTimers(_TimerHeap):
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

    def _arm(self) -> None:
        self._wakeup.set()

    def _run(self) -> None:
        while not self._is_closed:
            at = self._first_at()
            self._wakeup.wait(None if at is None else max(0.0, at - time.monotonic()))
            self._wakeup.clear()
            self._make_calls()


class _GreenTimers:
    """Timers of gevent and eventlet, which make each call on time, in a greenlet of its own.

    A call may wait for a free greenlet of the pool, and must not hold up the other calls.
    """

    def __init__(self, timer: Any) -> None:
        self._timer = timer
        self.call_after = timer.call_after
        self.cancel = timer.cancel

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self._timer.call_after(0.0, call, args)

    def attach(self) -> None:
        """See :class:`Timers`."""

    def close(self) -> None:
        """See :class:`Timers`."""


def cap_loop_wait(hub: Any) -> None:
    """Let kombu's loop wait no longer than until its next timer is due.

    This applies to all timers of the worker: timers of tasks with a countdown may delay ours, and
    the broker sends the next message only after an acknowledgement, which may be delayed as well.
    """
    if "fire_timers" in hub.__dict__:
        return
    fire_timers = hub.fire_timers

    def fire_timers_and_cap(**options: Any) -> float:
        delay: float = fire_timers(**options)
        if hub._ready:  # noqa: SLF001  # calls for the next round, which kombu ignores here
            return 0.0
        timers = hub.timer._queue  # noqa: SLF001  # kombu offers only a sorted copy otherwise
        return max(0.0, min(delay, timers[0][0] - time.monotonic())) if timers else delay

    hub.fire_timers = fire_timers_and_cap
