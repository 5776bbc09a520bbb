"""The calls that a worker's loop makes to the server of one shard: none of them blocks it for long.

The loop waits for a reply for :data:`.tuning.LOOP_CALL_SECONDS` at most, or somewhat longer if the
server is far away. Then a thread goes on with what is left: it reads the reply, follows a
redirection, tries again. Without a connection, or while another reply of the same server is late,
it goes on at once. Tasks of other shards, and tasks without limits, run meanwhile.

Laws at stake here: *never in the way*, and *never lost* (each call has one end, in the loop or
later, and what it took or claimed is received there).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.operations.plan import Blocking
from celery_throttle.store.client import Store
from celery_throttle.store.pending import PendingCalls
from celery_throttle.store.script import Call
from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.timers import Alarm, Timers

logger = get_logger(__name__)

T = TypeVar("T")


class RoundTrip(NamedTuple):
    """A step that makes calls in one round trip. Its result is the reply or error of each."""

    store: Store
    calls: Sequence[Call]

    def run(self) -> Sequence[Any]:
        """Make the calls, blocking."""
        return self.complete(lambda: self.store.run_all(self.calls))

    def finish(self, pending: PendingCalls) -> Sequence[Any]:
        """Wait for the end of calls that were begun, blocking."""
        return self.complete(lambda: self.store.finish(pending))

    def complete(self, function: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Return what a function returns; if it raises, each call has that error."""
        try:
            return function()
        except StoreError as error:
            return [error] * len(self.calls)


#: A generator of steps that returns a T. It may go on in a thread, so it changes nothing but what
#: is thread-safe; what concerns requests is done with its result.
LoopSteps = Generator[RoundTrip | Blocking, Any, T]


def run_in_place(steps: LoopSteps[T]) -> T:
    """Carry out steps, blocking, and return their result."""
    return _carry_out(steps, lambda: None)


def _carry_out(steps: LoopSteps[T], function: Callable[[], Any]) -> T:
    """Carry out steps, blocking; ``function`` returns or raises the result of the current one."""
    try:
        while True:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001  # the steps decide
                step = steps.throw(error)
            else:
                step = steps.send(result)
            function = step.run if isinstance(step, RoundTrip) else step.function
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is not generic


def _step(function: Callable[[], object]) -> LoopSteps[None]:
    yield Blocking(function)


def raise_error(outcome: object) -> None:
    """Raise what a function has raised in a thread: whoever makes the calls of timers logs it."""
    if isinstance(outcome, Exception):
        raise outcome


class LateReplyError(Exception):
    """The loop no longer waits for the end of some steps: they go on in a thread."""


def _go_on(steps: LoopSteps[T], function: Callable[[], Any]) -> Future[T]:
    """Carry out the rest of some steps in a thread; ``function`` as in :func:`_carry_out`."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(_carry_out(steps, function))
        except Exception as error:  # noqa: BLE001  # whoever receives the result gets it
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="throttle-late-call", daemon=True).start()
    except RuntimeError:  # the system has no more; the call may have claimed tasks
        run()
    return future


class LoopCalls:
    """Makes the calls of a worker's loop to the server of one shard, over one broker connection.

    After a slow call it rests for as long as the call has blocked the loop, at most 5 s: however
    slow the server is, other tasks have about half of the loop. Functions that call the server are
    queued during a rest, and until a late call has ended. They run one by one, in the order in
    which they came.

    Args:
        timers: the timers of the worker.
        late_servers: the servers of all late calls of the worker, by their futures.
    """

    def __init__(
        self, timers: Timers, late_servers: dict[Future[Any], str | None] | None = None
    ) -> None:
        self._timers = timers
        self._late_servers = {} if late_servers is None else late_servers
        self._rest_until = 0.0
        self._queue: deque[Callable[[], None]] = deque()
        self._alarm = Alarm(timers, self._run_next)
        #: The steps that go on in threads, with what receives their outcomes.
        self._late: dict[Future[Any], Callable[[Any], None]] = {}
        #: How long (s) the last calls took.
        self._recent = deque[float](maxlen=tuning.RECENT_CALL_COUNT)
        self._is_closed = False
        #: Called when a reply is late.
        self.on_late: Callable[[], None] = lambda: None

    def run(self, steps: LoopSteps[T], receive: Callable[[T | Exception], None]) -> T:
        """Carry out steps, and return their result.

        Raises:
            LateReplyError: they go on in a thread. ``receive`` is called once, in the loop, with
                their result or their error.
        """
        if self._is_closed or self._timers.may_block:
            return run_in_place(steps)
        began = time.monotonic()
        wait_until = began + (0.0 if self._late else self._patience())
        try:
            rest, server = self._begin(steps, wait_until)
            late = _go_on(steps, rest)
            seconds = 0.0 if server is None else max(0.0, wait_until - time.monotonic())
            if wait([late], seconds).done:
                return late.result()
            self._late[late], self._late_servers[late] = receive, server
            late.add_done_callback(partial(self._on_end, began))
            self.on_late()
            raise LateReplyError
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
        finally:
            self._record(began)

    def _patience(self) -> float:
        """Return how long the loop waits for a call.

        Replies of a server that is far away would all be late: a task that has given up its process
        for each of them may find none when its start comes.
        """
        usual = min(self._recent, default=0.0)
        return max(tuning.LOOP_CALL_SECONDS, min(3 * usual, tuning.FAR_CALL_SECONDS))

    def call(self, function: Callable[[], object]) -> None:
        """Call a function that may block, in a thread; wait for its end no longer than for a reply.

        Its result is dropped.
        """
        with suppress(LateReplyError):
            self.run(_step(function), raise_error)

    def _begin(
        self, steps: LoopSteps[T], wait_until: float
    ) -> tuple[Callable[[], Any], str | None]:
        """Carry out steps as long as their replies come in time.

        Returns the rest of the first step that may take longer, and its server: None if the loop
        need not wait for it. Raises StopIteration with the result if there is no such step.
        """
        step = next(steps)
        while isinstance(step, RoundTrip):
            try:
                pending = step.store.begin(*step.calls)
            except StoreError as error:  # no call is made: the circuit breaker is open
                step = steps.send([error] * len(step.calls))
                continue
            late = list(self._late_servers.values())
            is_late = bool(late) and pending.server in late
            if not pending.read_within(0.0 if is_late else wait_until - time.monotonic()):
                return partial(step.finish, pending), None if is_late else pending.server
            step = steps.send(step.store.finish(pending))
        return step.function, ""

    def _on_end(self, began: float, late: Future[Any]) -> None:
        self._late_servers.pop(late, None)
        self._recent.append(time.monotonic() - began)
        self._timers.call_soon(self._deliver, late)

    def _deliver(self, late: Future[Any]) -> None:
        """Pass on the outcome of late steps, unless that was done."""
        receive = self._late.pop(late, None)
        if receive is None:
            return
        if self._queue:
            self._alarm.set(self._remaining())
        receive(late.exception() or late.result())

    def _record(self, began: float) -> None:
        """Record that calls have blocked the loop, from a monotonic time until now."""
        now = time.monotonic()
        if not self._late:
            self._recent.append(now - began)
        took = min(now - began, tuning.MAX_REST_SECONDS)
        if took > tuning.SLOW_CALL_SECONDS:
            self._rest_until = max(now, self._rest_until + took) + took

    @property
    def is_late(self) -> bool:
        """Whether a late call has not ended yet."""
        return bool(self._late)

    def must_wait(self) -> bool:
        """Return whether no call should be made now, except by queued functions."""
        return bool(self._queue or self._late) or self._rest_until > time.monotonic()

    def run_or_queue(self, function: Callable[[], None]) -> None:
        """Run a function that calls the server: now, or once after those queued before it."""
        if function in self._queue:
            return
        if not self.must_wait():
            function()
            return
        self._queue.append(function)
        if not self._late:
            self._alarm.set(self._remaining())

    def close(self) -> None:
        """Drop the queued functions, and wait for late calls. Later calls are made in place."""
        self._is_closed = True
        self._queue.clear()
        self._alarm.cancel()
        for late in list(self._late):
            wait([late])
            try:
                self._deliver(late)
            except Exception:  # the others are received all the same
                logger.exception("Error after a late call")

    def _remaining(self) -> float:
        """Return the seconds of rest that are left."""
        return max(0.0, self._rest_until - time.monotonic())

    def _run_next(self) -> None:
        if self._late:  # its end sets the alarm again
            return
        try:
            if self._queue and not self._remaining():
                self._queue.popleft()()
        finally:
            if self._queue and not self._late:
                self._alarm.set(self._remaining())
