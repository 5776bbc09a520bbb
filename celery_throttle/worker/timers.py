"""Calls made after some seconds, on time whatever else the worker's loop has to do.

The law at stake here is *never idle*: Celery's timers may run up to a second late.

* With an event loop, kombu fires at most ten timers in one round of the loop. If more are due, it
  then waits for the broker for up to a second. It also waits although ``call_soon`` was called in
  that round. See "A fault of kombu" in ``docs/pools.md``.
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
    """The timers of one worker. All methods may be called from any thread."""

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> Any:
        """Call after some seconds. Returns an entry for :meth:`cancel`."""

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Call as soon as possible, but not from within this method."""

    def cancel(self, entry: Any) -> None:
        """Do not make this call, if it was not made yet."""

    def attach(self) -> None:
        """Begin, or go on after the event loop was reset. Called from the loop's thread."""

    def close(self) -> None:
        """The worker has ended."""


def timers_of(consumer: Any) -> Timers:
    """The right ones for the worker's pool and broker."""
    if consumer.hub is not None:
        return LoopTimers(consumer.hub)
    if getattr(consumer.pool, "is_green", False):
        return _GreenTimers(consumer.timer)
    return ThreadTimers()


class _Entry:
    """One call."""

    __slots__ = ("args", "call", "cancelled")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args
        self.cancelled = False


class _Heap:
    """Calls in the order of their times; those of the same time in the order they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Entry]] = []
        self._numbers = count()
        self._lock = threading.Lock()

    def call_after(
        self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> _Entry:
        """See :class:`Timers`."""
        entry = _Entry(call, args)
        at = time.monotonic() + max(0.0, seconds)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._numbers), entry))
            is_first = self._heap[0][2] is entry
        if is_first:
            self._arm()
        return entry

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        """See :class:`Timers`."""
        self.call_after(0.0, call, args)

    def cancel(self, entry: _Entry) -> None:
        """See :class:`Timers`."""
        entry.cancelled = True

    def _arm(self) -> None:
        """See to it that the first call is made at its time."""
        raise NotImplementedError

    def _first_at(self) -> float | None:
        """The monotonic time of the first call."""
        with self._lock:
            while self._heap and self._heap[0][2].cancelled:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def _make_calls(self, propagate: tuple[type[BaseException], ...] = ()) -> None:
        """Make the calls that are due now, but not those that they add."""
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


class LoopTimers(_Heap):
    """Timers in kombu's event loop.

    Args:
        hub: kombu's.
    """

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub
        self._thread = 0
        self._timer: Any = None
        self._timer_at = 0.0
        self._makes_calls = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.settimeout(0)  # neither may block
        self._is_woken = False

    def attach(self) -> None:
        """See :class:`Timers`."""
        never_oversleep(self._hub)
        self._thread = threading.get_ident()
        # Celery cancels a timer that was set while it connected, if that fails.
        self._timer = None
        self._hub.add_reader(self._reader, self._on_wake)
        self._arm()

    def close(self) -> None:
        """See :class:`Timers`."""
        self._reader.close()
        self._writer.close()

    def _arm(self) -> None:
        at = None if self._makes_calls else self._first_at()
        if at is None:
            return
        if threading.get_ident() != self._thread or at <= time.monotonic():
            self._wake()
        elif self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._hub.timer.cancel(self._timer)
            self._timer_at = at
            self._timer = self._hub.call_at(at, self._on_time)

    def _wake(self) -> None:
        """Have the loop come here at once, from whatever thread."""
        with self._lock:
            if self._is_woken:
                return
            self._is_woken = True
        with suppress(OSError):  # it was closed
            self._writer.send(b"\0")

    def _on_wake(self) -> None:
        # In this order, or a byte that is sent in between might be lost.
        with suppress(OSError):
            self._reader.recv(64)
        with self._lock:
            self._is_woken = False
        self._run()

    def _on_time(self) -> None:
        self._timer = None
        self._run()

    def _run(self) -> None:
        if self._makes_calls:  # a call that runs the loop
            return
        self._makes_calls = True
        try:
            self._make_calls(tuple(self._hub.propagate_errors))
        finally:
            self._makes_calls = False
            self._arm()


class ThreadTimers(_Heap):
    """Timers of a worker without an event loop: in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._stir = threading.Event()
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
        self._stir.set()

    def _arm(self) -> None:
        self._stir.set()

    def _run(self) -> None:
        while not self._is_closed:
            at = self._first_at()
            self._stir.wait(None if at is None else max(0.0, at - time.monotonic()))
            self._stir.clear()
            self._make_calls()


class _GreenTimers:
    """Timers of gevent and eventlet: each call is made in a greenlet of its own, on time.

    A call may wait for room in the pool, and must not hold up the others.
    """

    def __init__(self, timer: Any) -> None:
        self._timer = timer
        self.call_after = timer.call_after
        self.cancel = timer.cancel

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        """See :class:`Timers`."""
        self._timer.call_after(0.0, call, args)

    def attach(self) -> None:
        """See :class:`Timers`."""

    def close(self) -> None:
        """See :class:`Timers`."""


def never_oversleep(hub: Any) -> None:
    """Let kombu's loop wait for no longer than until its next timer is due.

    It concerns all timers of the worker: those of tasks with a countdown may keep the loop from
    ours, and an acknowledgement that comes late keeps the broker from sending the next message.
    """
    if "fire_timers" in hub.__dict__:
        return
    fire_timers = hub.fire_timers

    def fire_timers_and_look(*args: Any, **options: Any) -> float:
        delay: float = fire_timers(*args, **options)
        if hub._ready:  # noqa: SLF001  # calls for the next round, which it does not look at
            return 0.0
        timers = hub.timer._queue  # noqa: SLF001  # its first entry; else it offers a sorted copy only
        return max(0.0, min(delay, timers[0][0] - time.monotonic())) if timers else delay

    hub.fire_timers = fire_timers_and_look
