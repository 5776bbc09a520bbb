"""Calls the functions of limits and costs: those that are fast in place, all others in threads.

A function may wait for a database, and the worker's loop must not. So the first calls of the
functions of a task are made in threads. Once they have been fast many times in a row, they are
called in place, which costs less; until a call is slow. A task whose functions run in a thread
waits in this worker, without a process and without a prefetch slot; its message stays
unacknowledged. A function that does not return fails the tasks that need it, and no others.

Law at stake here: *never in the way* (a slow function delays only its own tasks).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.log import get_logger

from celery_throttle.errors import LimitFunctionError, raised_error
from celery_throttle.limits.requirement import Requirement
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.request_limits import (
    LimitedCall,
    NotComputedError,
    calls_of,
    limits_of,
    require,
    set_computed,
)
from celery_throttle.worker.hooks.timers import Timers

logger = get_logger(__name__)

#: What the handler of a signal may raise in the main thread, within a function.
_ENDS = (KeyboardInterrupt, WorkerShutdown, WorkerTerminate)


@dataclass(eq=False, slots=True)
class _Call:
    """The functions of one request, called in a thread."""

    request: Any
    calls: Sequence[LimitedCall]
    functions: _Functions
    end_wait: Callable[[Any], None]  #: brings the request to the gate
    timer: Any = None  #: fails the task if the functions do not return
    error: Exception | None = None  #: with which the task fails


@dataclass(eq=False, slots=True)
class _Functions:
    """The functions of one task."""

    text: str  #: the task and the functions, for messages
    running: set[_Call] = field(default_factory=set)  #: calls that have a thread
    overdue: set[_Call] = field(default_factory=set)  #: of these, those whose tasks have failed
    waiting: deque[_Call] = field(default_factory=deque)  #: calls that wait for a thread
    in_place: bool = False  #: whether they are called in place
    in_row: int = 0  #: the last calls in a row that speak against that
    needed_in_row: int = tuning.FAST_FUNCTION_CALLS  #: fast calls that move them into place

    @property
    def are_stuck(self) -> bool:
        """Whether no call of them can be made."""
        return len(self.overdue) >= tuning.FUNCTION_THREADS

    def note(self, seconds: float) -> None:
        """Note how long a call took, and decide whether the next ones are made in place."""
        is_fast = seconds < tuning.FAST_FUNCTION_SECONDS
        self.in_row = 0 if is_fast is self.in_place else self.in_row + 1
        if not self.in_place:
            if self.in_row >= self.needed_in_row:
                self.in_place, self.in_row = True, 0
        elif self.in_row >= tuning.SLOW_FUNCTION_CALLS or seconds > tuning.BLOCKING_SECONDS:
            self.in_place, self.in_row = False, 0
            self.needed_in_row = min(10 * self.needed_in_row, tuning.MAX_FAST_FUNCTION_CALLS)
            if seconds > tuning.LOGGED_FUNCTION_SECONDS:
                text = "%s took %.1f s, and this worker started no other task meanwhile"
                logger.warning(text, self.text, seconds)

    def error(self) -> LimitFunctionError:
        return LimitFunctionError(
            f"{self.text} has not returned within {tuning.FUNCTION_SECONDS:g} s; in this worker, "
            f"{len(self.overdue)} such calls still run"
        )


class FunctionCalls:
    """The calls of functions in one worker.

    Args:
        throttle: the limits of the app.
        timers: calls back in the worker's loop.
        clock: returns the time in seconds, of which the durations of calls are differences.
    """

    def __init__(
        self,
        throttle: AppLimits,
        timers: Timers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._throttle = throttle
        self._timers = timers
        self._clock = clock
        self._functions: dict[str, _Functions] = {}  # by the text of the first one
        #: Threads are shared by all functions: there are as many as calls have run at once.
        self._jobs: Queue[_Call] = Queue()
        self._running: set[_Call] = set()
        self._threads = 0

    def limits_of(
        self, request: Any, end_wait: Callable[[Any], None] | None = None
    ) -> TaskLimits | None:
        """Return the limits of a request.

        ``end_wait``: called with the request, in the worker's loop, when a thread has computed its
        limits and this is to be called again. None: no thread computes them.

        Raises:
            NotComputedError: a thread computes the limits, or would have to.
            ThrottleError: a function, a key or a cost is wrong, or a function does not return.
        """
        try:
            return limits_of(self._throttle, request)
        except NotComputedError:
            call: _Call | None = request.throttle_state.function_call
        if call is None:
            calls = calls_of(self._throttle, request)
            functions = self._functions_of(calls)
            if functions.in_place:
                return self._compute_in_place(request, calls, functions)
            if end_wait is not None:
                self._compute_in_thread(_Call(request, calls, functions, end_wait))
        elif call.error is not None:
            raise call.error
        elif end_wait is not None:
            call.end_wait = end_wait
        raise NotComputedError

    def _compute_in_thread(self, call: _Call) -> None:
        functions = call.functions
        if functions.are_stuck:
            raise functions.error()
        call.request.throttle_state.function_call = call
        if len(functions.running) < tuning.FUNCTION_THREADS:
            self._start(call)
        else:
            functions.waiting.append(call)

    def _compute_in_place(
        self, request: Any, calls: Sequence[LimitedCall], functions: _Functions
    ) -> TaskLimits | None:
        began = self._clock()
        try:
            requirement = require(self._throttle, calls)
        except (Exception, *_ENDS):
            raise
        except BaseException as wrong:  # such as CancelledError: it would end the worker
            raise raised_error(functions.text, wrong) from wrong
        finally:
            functions.note(self._clock() - began)
        return set_computed(self._throttle, request, calls, requirement)

    def _functions_of(self, calls: Sequence[LimitedCall]) -> _Functions:
        found = next(call.limits.functions for call in calls if call.limits.functions)
        functions = self._functions.get(found[0].text)
        if functions is None:
            text = " or ".join(each.text for each in found)
            functions = self._functions[found[0].text] = _Functions(text)
        return functions

    def _start(self, call: _Call) -> None:
        call.functions.running.add(call)
        self._running.add(call)
        call.timer = self._timers.call_after(tuning.FUNCTION_SECONDS, self._fail_overdue, (call,))
        self._jobs.put(call)
        if self._threads < len(self._running):
            self._threads += 1
            threading.Thread(target=self._run_calls, daemon=True).start()

    # In a thread.

    def _run_calls(self) -> None:
        while True:
            call = self._jobs.get()
            began = self._clock()
            requirement: Requirement | None = None
            error: Exception | None = None
            try:
                requirement = require(self._throttle, call.calls)
            except Exception as wrong:  # noqa: BLE001  # the thread must not end
                error = wrong
            except BaseException as wrong:  # noqa: BLE001  # such as sys.exit(): for the same reason
                error = raised_error(call.functions.text, wrong)
            seconds = self._clock() - began
            self._timers.call_soon(self._finish, call, requirement, error, seconds)

    # In the worker's loop.

    def _finish(
        self, call: _Call, requirement: Requirement | None, error: Exception | None, seconds: float
    ) -> None:
        functions, request = call.functions, call.request
        self._timers.cancel(call.timer)
        self._running.discard(call)
        functions.running.discard(call)
        if functions.waiting:
            self._start(functions.waiting.popleft())
        functions.note(seconds)
        if call in functions.overdue:
            functions.overdue.discard(call)
            return
        if error is None:
            request.throttle_state.function_call = None
            set_computed(self._throttle, request, call.calls, requirement)
        else:
            call.error = error
        call.end_wait(request)

    def _fail_overdue(self, call: _Call) -> None:
        """Fail a task whose functions do not return; if no call can be made, all that wait."""
        functions = call.functions
        functions.overdue.add(call)
        failed = [call]
        if functions.are_stuck:
            failed += functions.waiting
            functions.waiting.clear()
        for one in failed:
            one.error = functions.error()
            one.end_wait(one.request)
