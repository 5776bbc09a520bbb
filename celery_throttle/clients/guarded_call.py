"""Guarded calls: calls to an external API that begin once their limits allow them.

The wrappers of all clients share this flow. A :class:`GuardedCall` is one attempt: it acquires
units or a slot, sends the request, reports the response to the limits, and ends. How a client sends
is an :class:`Exchange`; what all its calls have in common is a :class:`Guard`.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Generic, TypeVar

from celery_throttle.clients.guard import Guard
from celery_throttle.errors import StoreError, StoreUnavailableError, Throttled
from celery_throttle.limiter.leases import Slot, enter_step, exit_step
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS, Feedback
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Acquisition
from celery_throttle.operations.plan import Plan, Sleep
from celery_throttle.store.steps import Step, Steps

logger = logging.getLogger(__name__)

#: Seconds after which the slot of a call is free again if this process dies.
_LEASE_SECONDS = 30.0

R = TypeVar("R")


class Exchange(ABC, Generic[R]):
    """How one client sends one request, and what its response says.

    For asyncio, ``send``, ``load`` and ``close`` return awaitables.
    """

    send: Callable[[], Any]  #: sends the request and returns the response
    loads_body = False  #: whether the body is read into memory if the call holds a slot

    def is_repeatable(self) -> bool:
        """Whether the request can be sent again: a stream may have been read to its end."""
        return True

    @abstractmethod
    def feedback(self, response: R, seconds: float) -> Feedback | None:
        """Return what the response says about limits, ``seconds`` after the call began."""

    def payload(self, response: R) -> Any:
        """Return what ``usage`` takes."""
        return response

    def load(self, response: R) -> Any:
        """Read the body of the response into memory."""

    def close(self, response: R) -> Any:
        """Drop the response, which nobody will read."""

    def end_with_body(self, response: R, call: GuardedCall[R]) -> bool:  # noqa: ARG002  # for others
        """Let the end of the body end the call. False if the body has been read."""
        return False


def call_steps(guard: Guard, exchange: Exchange[R], *args: Any, **kwargs: Any) -> Steps[R]:
    """Return the steps of one call, which return the response.

    ``args`` and ``kwargs`` are those of ``key`` and ``cost``.

    Raises (by the steps):
        Throttled: the limits refused; nothing was sent.
        StoreUnavailableError: the limits server cannot be reached, and not all of the
            limits are ``outage open``; nothing was sent.
    """
    requirement = guard.requirement(*args, **kwargs)
    return _run(GuardedCall(guard, exchange, requirement, guard.max_wait, guard.retry_refused))


def _run(call: GuardedCall[R]) -> Steps[R]:
    yield from call.begin()
    response, refusal = yield from call.send()
    while refusal is not None and (following := (yield from call.repeat(refusal))) is not None:
        call = following
        response, refusal = yield from call.send()
    if call.slot is not None and not call.exchange.end_with_body(response, call):
        yield from call.end()
    return response


@dataclass(eq=False, repr=False)
class GuardedCall(Generic[R]):
    """One attempt at a call: :meth:`begin`, :meth:`send`, :meth:`end`, as steps."""

    guard: Guard
    exchange: Exchange[R]
    requirement: Requirement
    max_wait: float  #: seconds that it may wait for its limits
    retries: int  #: how often it may be repeated
    delay: float = 0.0  #: seconds that it waits before it acquires
    slot: Slot | None = None  #: held until :meth:`end`

    def __post_init__(self) -> None:
        self._limiter = self.guard.limiter
        self._pause: float | None = None
        self._acquired: Acquisition | None = None
        self._began = 0.0

    def begin(self) -> Steps[None]:
        """Acquire what the call needs. Raises as :func:`call_steps`; then there is no end."""
        if self.delay:
            yield from self._limiter.plan_steps(_sleep(self.delay))
        try:
            if self.guard.takes_slots:
                slot = Slot(self._limiter, self.requirement, self.max_wait, _LEASE_SECONDS)
                yield enter_step(slot)
                self.slot, self._acquired = slot, slot.acquisition
            else:
                mode = "take" if self.guard.usage is None else "reserve"
                plan = self._limiter.acquire_plan(self.requirement, self.max_wait, mode=mode)
                self._acquired = yield from self._limiter.plan_steps(plan)
        except StoreUnavailableError:
            if not self.guard.fails_open:
                raise
        self._began = time.monotonic()

    def send(self) -> Steps[tuple[R, Feedback | None]]:
        """Send the request and report the response to the limits.

        Returns the response; and what it says, if it is a refusal and may be sent again. Then the
        call has ended, and so it has if this raises.
        """
        exchange = self.exchange
        try:
            response = yield Step(exchange.send, exchange.send, may_return_awaitable=True)
        except BaseException:
            yield from self.end()
            raise
        try:
            feedback = exchange.feedback(response, time.monotonic() - self._began)
            refused = feedback is not None and feedback.refused
            repeats = refused and self.retries > 0 and exchange.is_repeatable()
            if repeats or self.guard.usage is not None or (self.slot and exchange.loads_body):
                yield _step(lambda: exchange.load(response))
            if feedback is not None:
                yield from self._report(feedback, response)
        except BaseException:
            yield _step(lambda: exchange.close(response))
            yield from self.end()
            raise
        if repeats:
            yield from self.end()
        return response, feedback if repeats else None

    def _report(self, feedback: Feedback, response: R) -> Steps[None]:
        """Let the limits learn, and settle the cost. A failure must not lose the response."""
        try:
            actual = None
            if self._acquired is not None and (usage := self.guard.usage) is not None:
                actual = 0
                if not feedback.refused:
                    actual = yield _step(lambda: usage(self.exchange.payload(response)))
            yield from self._limiter.plan_steps(self._learn(feedback, actual))
        except StoreError as error:
            _log_unreported(error)
        except Exception:
            logger.exception("The true cost of a call is unknown: its estimate stands")

    def _learn(self, feedback: Feedback, actual: Any) -> Plan[None]:
        plans = self._limiter.plans
        requirement = self.guard.learning(self.requirement)
        says = feedback.refused or feedback.stop or feedback.left is not None
        if requirement and (says or self.guard.is_adaptive):
            self._pause = yield from plans.learn(requirement, feedback)
            if self._pause:
                self.guard.log_pause(self._pause)
        if self._acquired is not None and actual is not None:
            yield from plans.settle(self._acquired, actual)

    def repeat(self, refusal: Feedback) -> Steps[GuardedCall[R] | None]:
        """Begin the next attempt, once the limits go on, and within ``max_wait`` after that.

        Returns None if the limits do not allow it: then the refusal is the caller's.

        Raises:
            TaskThrottled: A task that runs in a worker waits in its line instead.
        """
        pause = self._pause
        if pause is None:
            pause = DEFAULT_STOP_SECONDS if refusal.stop is None else refusal.stop
        if not self._limiter.may_resend(self.requirement, self._acquired, pause, self.retries):
            return None
        # Limits that did not learn of the refusal do not delay the call themselves.
        delay = pause if self._pause is None else 0.0
        max_wait = self.guard.max_wait + (pause if pause < inf else 0.0)
        call = replace(self, max_wait=max_wait, retries=self.retries - 1, delay=delay)
        try:
            yield from call.begin()
        except Throttled:
            return None
        return call

    def end(self) -> Steps[None]:
        """Release the slot, if one is held."""
        slot, self.slot = self.slot, None
        if slot is not None:
            try:
                yield exit_step(slot)
            except StoreError as error:  # the lease expires in any case
                _log_unreported(error)


def _step(action: Callable[[], Any]) -> Step:
    return Step(action, action)


def _sleep(seconds: float) -> Plan[None]:
    yield Sleep(seconds)


def _log_unreported(error: StoreError) -> None:
    logger.warning("A response or the end of a call was not reported to its limits: %s", error)
