"""Guarded calls: calls to an API that begin once their limits allow them.

The wrappers of all clients share this flow. A :class:`GuardedCall` is one attempt: it acquires
units or a slot, sends the request, lets the limits learn from the answer, and settles the estimate
when the body has ended. How a client sends is an :class:`Exchange`; what all its calls have in
common is a :class:`~celery_throttle.clients.calls.guard.Guard`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Generic, TypeVar

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.calls.body import WatchedBody
from celery_throttle.clients.calls.guard import CountedLimits, Guard
from celery_throttle.clients.profiles.profile import REQUESTS, Meaning
from celery_throttle.clients.profiles.reading import Reading, read
from celery_throttle.errors import StoreError, StoreUnavailableError, Throttled, ThrottleError
from celery_throttle.limiter.leases import Slot, enter_step, exit_step, reserve_steps
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Acquisition
from celery_throttle.operations.plan import Plan, Sleep
from celery_throttle.store.steps import (
    Step,
    Steps,
    arun_steps,
    last_step,
    run_steps,
    run_to_end,
)

logger = logging.getLogger(__name__)

#: Seconds after which the slot of a call is free again if this process dies.
_LEASE_SECONDS = 30.0

_TOO_MANY = 429

_UNKNOWN_USAGE = ("it does not tell the true cost of a call: its estimate stands",)

R = TypeVar("R")


class Exchange(ABC, Generic[R]):
    """How one client sends one request, and what its response holds.

    For asyncio, ``send``, ``read_body`` and ``close`` return awaitables.
    """

    send: Callable[[], Any]  #: sends the request and returns the response
    is_decoded = False  #: whether the pieces of a body that passes are decoded

    def is_repeatable(self) -> bool:
        """Whether the request can be sent again: a stream may have been read to its end."""
        return True

    def content(self) -> Any:
        """Return what the JSON of the request's body stands for; None if it is none."""
        return None

    @abstractmethod
    def answer(self, response: R) -> ApiAnswer | None:
        """Return the answer, without a body. None if the response says nothing about limits."""

    def read_body(self, response: R) -> Any:
        """Read the body of the response to its end; return it decoded, or None if there is none."""

    def may_end_in_error(self, response: R) -> bool:  # noqa: ARG002  # for others
        """Whether reading the body may raise an error of the API; see :meth:`read_error`."""
        return False

    def read_error(self, error: Exception) -> ApiAnswer | None:  # noqa: ARG002  # for others
        """Return the answer that an error of the body stands for; None if it stands for none."""
        return None

    def close(self, response: R) -> Any:
        """Drop the response, which nobody will read."""

    def give_up(self, response: R) -> None:
        """Keep the client from sending the request again by itself.

        The limits know of the refusal in this response; or it has the status of one, but is about
        money, so that it does not help to send the request again.
        """

    def watch(self, response: R, call: GuardedCall[R]) -> bool:  # noqa: ARG002  # for others
        """Let the call watch the body while it passes; False if the body has passed.

        The body gives its pieces to ``call.feed()``, and then ends the call: ``call.end()``.
        """
        return False


def call_steps(guard: Guard, exchange: Exchange[R], *args: Any, **kwargs: Any) -> Steps[R]:
    """Return the steps of one call, which return the response.

    ``args`` and ``kwargs`` are those of the functions of the guard.

    Raises (by the steps):
        Throttled: the limits refused; nothing was sent.
        StoreUnavailableError: the limits server cannot be reached, and not all of the
            limits are ``outage open``; nothing was sent.
        LimitFunctionError: a function raised, or returned a wrong value; nothing was sent.
    """
    limits = yield from guard.limits_of(*args, **kwargs)
    if limits is None:
        sent: R = yield Step(exchange.send, exchange.send, may_return_awaitable=True)
        return sent
    requirement = yield from guard.requirement(limits, exchange.content, *args, **kwargs)
    call = GuardedCall(guard, limits, exchange, requirement, guard.max_wait, guard.retry_refused)
    yield from call.begin()
    response, refusal = yield from call.send()
    while refusal is not None and (following := (yield from call.repeat(refusal))) is not None:
        call = following
        response, refusal = yield from call.send()
    return response


@dataclass(eq=False, repr=False)
class GuardedCall(Generic[R]):
    """One attempt at a call: :meth:`begin`, :meth:`send`, :meth:`finish`, as steps."""

    guard: Guard
    limits: CountedLimits
    exchange: Exchange[R]
    requirement: Requirement
    max_wait: float  #: seconds that it may wait for its limits
    retries: int  #: how often it may be repeated
    delay: float = 0.0  #: seconds that it waits before it acquires

    def __post_init__(self) -> None:
        self._limiter = self.limits.limiter
        self._pause: float | None = None
        self._acquired: Acquisition | None = None
        self._slot: Slot | None = None
        self._began = 0.0
        self._answer: ApiAnswer | None = None
        self._body: WatchedBody | None = None  # while it passes
        self._reads_body = False  # whether the body may tell the usage, or a refusal

    def begin(self) -> Steps[None]:
        """Acquire what the call needs. Raises as :func:`call_steps`; then there is no end."""
        if self.delay:
            yield from self._limiter.plan_steps(_sleep(self.delay))
        try:
            if self.limits.takes_slots:
                slot = Slot(self._limiter, self.requirement, self.max_wait, _LEASE_SECONDS)
                yield enter_step(slot)
                self._slot, self._acquired = slot, slot.acquisition
            elif self.limits.has_estimates:
                steps = reserve_steps(self._limiter, self.requirement, self.max_wait)
                self._acquired = yield from steps
            else:
                taken = yield self._limiter.take_step(self.requirement, self.max_wait)
                self._acquired = taken.checked()
        except StoreUnavailableError:
            if not self.limits.fails_open:
                raise
        self._began = time.monotonic()

    def send(self) -> Steps[tuple[R, Reading | None]]:
        """Send the request, and let the limits learn from the answer.

        Returns the response; and what it says, if it is a refusal and may be sent again. Then the
        call has ended, and so it has if this raises.
        """
        exchange = self.exchange
        try:
            response = yield Step(exchange.send, exchange.send, may_return_awaitable=True)
        except BaseException:
            yield from self._end(self.limits.kept((REQUESTS,)))
            raise
        try:
            reading = yield from self._read(response)
            refused = reading.meaning in (Meaning.REFUSAL, Meaning.OVERLOAD)
            if refused or (self._answer is not None and self._answer.status == _TOO_MANY):
                exchange.give_up(response)
            repeats = refused and self.retries > 0 and exchange.is_repeatable()
        except BaseException:
            # What an accepted request has cost is not known: its estimate counts.
            answer, actual = self._answer, None
            if answer is not None and (answer.status is None or answer.is_error):
                actual = self.limits.kept((REQUESTS,))
            try:
                yield _step(lambda: exchange.close(response))
            finally:
                yield from self._end(actual)
            raise
        yield from self._end_or_watch(response, reading)
        return response, reading if repeats else None

    def _read(self, response: R) -> Steps[Reading]:
        """Return what the answer says about the limits, which learn from it."""
        answer = self._answer = self.exchange.answer(response)
        if answer is None:
            accepted = Reading(Meaning.ACCEPTED)
            yield from self._learn(accepted)
            return accepted
        if answer.is_error and not answer.has_body:  # it is short, and has the codes
            try:
                body = yield _step(lambda: self.exchange.read_body(response))
            except Exception:  # the headers may say that the API refused
                yield from self._learn(read(self.guard.profile, answer, time.time()))
                raise
            answer = answer.with_body(lambda: body)
        reading = read(self.guard.profile, answer, time.time())
        yield from self._learn(reading, is_whole=not self.guard.profile.reads_body(answer))
        return reading

    def _learn(self, reading: Reading, *, is_whole: bool = True) -> Steps[None]:
        """Let the limits learn. A failure must not lose the response.

        ``is_whole``: whether the body, which may yet say that the API refused, has been read.
        """
        self.guard.log_warnings(self.limits.quantities, reading.warnings)
        took = time.monotonic() - self._began if is_whole else None
        try:
            answers = self.limits.feedback(reading, took)
            if answers:
                pause = yield from self._limiter.plan_steps(self._limiter.learn_plan(answers))
                self.guard.note_answers(answers)
                self._pause = max(pause, self._pause or 0.0)
            names = [
                ref.name
                for ref, each in answers.items()
                if each.refused or each.overloaded or each.stop
            ]
            if self._pause and names:
                self.guard.log_pause(names, self._pause)
        except ThrottleError as error:
            _log_unreported(error)

    def _end_or_watch(self, response: R, reading: Reading) -> Steps[None]:
        if reading.meaning is Meaning.REFUSAL:
            yield from self._end(self.limits.kept(self.guard.profile.refused_costs))
        elif reading.meaning is not Meaning.ACCEPTED:
            yield from self._end(self.limits.kept((REQUESTS,)))
        else:
            answer, guard = self._answer, self.guard
            headers = {} if answer is None else answer.headers
            # Most answers are not read: their bodies would be kept and parsed for nothing.
            self._reads_body = self.limits.has_estimates or (
                answer is not None and guard.profile.reads_body(answer)
            )
            waits = self._reads_body or self._slot is not None
            if not waits and not self.exchange.may_end_in_error(response):
                return  # nothing waits for the end of the body
            self._body = WatchedBody(headers, guard.read_usage)
            if not self.exchange.watch(response, self):
                if self._reads_body:
                    body = yield _step(lambda: self.exchange.read_body(response))
                    self._body.feed(body or b"", is_decoded=True)
                yield from self.finish()

    def feed(self, piece: bytes) -> None:
        """A piece of the body passes to its reader."""
        if self._body is not None and self._reads_body:
            self._body.feed(piece, is_decoded=self.exchange.is_decoded)

    def read(self, document: Any) -> None:
        """A part of the answer passes to its reader: a result, or one item of it."""
        if self._body is not None and self._reads_body:
            self._body.read(document)

    def finish(self, error: Exception | None = None) -> Steps[None]:
        """End the call once the body has passed, or its reader wants no more of it.

        ``error``: what the body raised before its end.
        """
        body, self._body = self._body, None
        if body is None:
            return
        units, actual = body.end(), None
        try:
            reading = self._late_reading(body, error)
            if reading is not None and reading.meaning is Meaning.REFUSAL:
                actual = self.limits.kept(self.guard.profile.refused_costs)
            elif units:
                actual = self.limits.actual(units, self.requirement)
            elif self.limits.has_estimates:
                self.guard.log_warnings(self.limits.quantities, _UNKNOWN_USAGE)
            if reading is not None:
                yield from self._learn(reading)
        finally:
            yield from self._end(actual)

    def end(self, error: Exception | None = None) -> None:
        """:meth:`finish`, for a client that blocks."""
        run_steps(self.finish(error))

    async def aend(self, error: Exception | None = None) -> None:
        """:meth:`finish`, for a client of asyncio, whatever is cancelled meanwhile."""
        await run_to_end(lambda: arun_steps(self.finish(error)))

    def _late_reading(self, body: WatchedBody, error: Exception | None) -> Reading | None:
        """Return what the end of a body says about the limits; None if it says nothing."""
        answer = None
        if error is not None:
            answer = self.exchange.read_error(error)
        elif self._answer is not None and self.guard.profile.reads_body(self._answer):
            # Some APIs refuse with status 200: the body says so.
            answer = self._answer.with_body(lambda: body.document)
        return None if answer is None else read(self.guard.profile, answer, time.time())

    def repeat(self, refusal: Reading) -> Steps[GuardedCall[R] | None]:
        """Begin the next attempt, once the limits go on, and within ``max_wait`` after that.

        Returns None if the limits do not allow it, or their server cannot be reached: then the
        refusal is the caller's.

        Raises:
            TaskThrottled: A task that runs in a worker waits in its line instead.
        """
        pause = self._pause
        if pause is None:
            pause = DEFAULT_STOP_SECONDS if refusal.wait is None else refusal.wait
        if not self._limiter.may_resend(self.requirement, self._acquired, pause, self.retries):
            return None
        # Limits that did not learn of the refusal do not delay the call themselves.
        delay = pause if self._pause is None else 0.0
        max_wait = self.guard.max_wait + (pause if pause < inf else 0.0)
        call = replace(self, max_wait=max_wait, retries=self.retries - 1, delay=delay)
        try:
            yield from call.begin()
        except Throttled as error:
            run = self._limiter.current_run()
            if run is not None and run.refusal is error:
                raise
            return None
        except StoreUnavailableError:
            return None
        return call

    def _end(self, actual: dict[str, Any] | None) -> Steps[None]:
        """Settle the estimate, if the ``actual`` cost is known, and release the slot.

        Asyncio may cancel the call again meanwhile: scopes of anyio do so at each of its waits.
        """
        known = actual if self.limits.has_estimates and self._acquired is not None else None
        if known is not None or self._slot is not None:
            yield last_step(lambda: self._settle(known))

    def _settle(self, actual: dict[str, Any] | None) -> Steps[None]:
        acquired, plans = self._acquired, self._limiter.plans
        try:
            if actual is not None and acquired is not None:
                yield from self._limiter.plan_steps(plans.settle(acquired, actual))
        except ThrottleError as error:  # the estimate counts
            _log_unreported(error)
        finally:
            yield from self.release()

    def release(self) -> Steps[None]:
        """Release the slot, if one is held."""
        slot, self._slot = self._slot, None
        if slot is not None:
            try:
                yield exit_step(slot)
            except StoreError as error:  # the lease expires in any case
                _log_unreported(error)


def release_later(call: GuardedCall[Any], may_read: Callable[[], bool]) -> Callable[..., None]:
    """Return a callback for when a connection is free, which acts in a task of the running loop.

    It releases the slot of a call, and ends the call unless its reader still has pieces to read.
    """
    loop = asyncio.get_running_loop()
    tasks = set[asyncio.Task[None]]()

    def release(*_: Any) -> None:
        if loop.is_closed():  # nothing can be awaited any more; the lease expires
            return
        task = loop.create_task(arun_steps(call.release() if may_read() else call.finish()))
        tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(tasks.discard)

    return release


def _step(action: Callable[[], Any]) -> Step:
    return Step(action, action)


def _sleep(seconds: float) -> Plan[None]:
    yield Sleep(seconds)


def _log_unreported(error: ThrottleError) -> None:
    logger.warning("A response or the end of a call was not reported to its limits: %s", error)
