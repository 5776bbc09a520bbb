"""Outbound: calls to somebody else's API, between the limits they pass and what their answers say.

What the wrappers of all clients have in common. A call's limits are asked before it is sent; after
its answer they are told what is to be learned of it, and what the call was worth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import isawaitable
from math import inf
from typing import Any

from celery_throttle.errors import (
    LimitValueError,
    StoreError,
    StoreUnavailableError,
    Throttled,
    shown,
)
from celery_throttle.leases import Slot
from celery_throttle.limiter_core import LimiterCore, LimitHandles, check_handles
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS, Heard
from celery_throttle.limits.grammar import ADAPTIVE
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import Requirement, has_slots
from celery_throttle.operations.acquire import Acquisition
from celery_throttle.operations.plan import Plan, Sleep

logger = logging.getLogger(__name__)

#: Seconds by which a stop must be longer than the one before to be worth a line in the log.
_LONGER = 0.5


class Outbound:
    """What the calls of one client need. The functions take what the client knows of a call.

    Args:
        limit: ``throttle["stripe"]``, or a list of such, of the same limiter.
        key: a function that gives the key of each limit that has none of its own; None of it: the
            limit itself.
        cost: units of each, or a function that gives them; 1 unless given. A mapping of the
            limit's name to units is allowed as well, here and of ``usage``.
        max_wait: seconds that a call waits for its limits at most; 0 unless given.
        usage: a function of the answer that gives what it was worth; ``cost`` is an estimate, then.
        retry_429: how often a call that the API refused is made again once its limits go on; 0
            unless given.

    Raises:
        LimitError: something of this is wrong.
    """

    def __init__(
        self,
        limit: LimitHandles,
        *,
        key: Callable[..., Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[Any], Any] | None = None,
        retry_429: int = 0,
    ) -> None:
        self._bounds = check_handles(limit)
        for name, function in (("key", key), ("usage", usage)):
            if function is not None and not callable(function):
                raise LimitValueError(f"{name} {shown(function)} is no function; allowed: one")
        self.limiter: LimiterCore = self._bounds[0].limiter
        self._key = key
        self._cost: Any = 1 if cost is None else cost
        self.max_wait = check_duration(max_wait, "max_wait")
        self.usage = usage
        if not isinstance(retry_429, int) or isinstance(retry_429, bool) or retry_429 < 0:
            raise LimitValueError(
                f"retry_429 {shown(retry_429)} is not allowed: it is a whole number, 0 or more"
            )
        self.retry_429 = retry_429
        self._fixed = None if key or callable(self._cost) else self._need((), {})
        self._stopped_until = 0.0

    def passage(self, *args: Any, **kwargs: Any) -> Passage:
        """One call, of which the client knows this."""
        return Passage(self, self._fixed or self._need(args, kwargs), self.max_wait, self.retry_429)

    def _need(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Requirement:
        refs = [bound.ref for bound in self._bounds]
        if self._key is not None:
            key = self._key(*args, **kwargs)
            whole = key is None
            refs = [
                ref if ref.key is not None or whole else LimitRef(ref.name, encode_key(key))
                for ref in refs
            ]
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        return self.limiter.require(refs, cost)

    def learners(self, need: Requirement) -> Requirement | None:
        """What of a call's need is told of its answer: all of it, unless a client knows better."""
        return need

    def names(self) -> list[str]:
        """The names of the limits."""
        return [bound.ref.name for bound in self._bounds]

    # What the code says of the limits: read at the first call, as an app's settings are.

    @cached_property
    def _known(self) -> list[Limit]:
        known = self.limiter.limits
        return [limit for name in self.names() for limit in known.get(name, ())]

    @cached_property
    def has_slots(self) -> bool:
        """Whether one of them is a number of slots."""
        return any(map(has_slots, self._known))

    @cached_property
    def adapts(self) -> bool:
        """Whether one of them is adaptive, and hears of every answer."""
        return any(limit.algorithm == ADAPTIVE for limit in self._known)

    @cached_property
    def is_open(self) -> bool:
        """Whether calls go out while the server of the limits is lost."""
        known = all(name in self.limiter.limits for name in self.names())
        return known and all(limit.outage == "open" for limit in self._known)

    def stopped(self, seconds: float) -> None:
        """An answer has stopped the limits."""
        until = time.monotonic() + seconds
        if until > self._stopped_until + _LONGER:
            names = ", ".join(map(repr, self.names()))
            long = "until it is resumed" if seconds == inf else f"for {seconds:.3f} s"
            logger.warning("The API of %s says stop: no calls %s", names, long)
        self._stopped_until = max(until, self._stopped_until)


class Passage:
    """One call: :meth:`begin` before it, :meth:`answered` and :meth:`end` after, each once.

    Where the limits refuse, ``begin`` raises what ``limiter.acquire(max_wait=...)`` does, and there
    is nothing to end.
    """

    def __init__(
        self,
        outbound: Outbound,
        need: Requirement,
        max_wait: float,
        resends: int,
        delay: float = 0.0,
    ) -> None:
        self._outbound = outbound
        self._limiter = outbound.limiter
        self._need = need
        self._max_wait = max_wait
        self._resends = resends
        self._delay = delay
        self._stop: float | None = None
        self._taken: Acquisition | None = None
        #: The slot that is held until :meth:`end`, if there is one.
        self.slot: Slot | None = None
        if outbound.has_slots:
            self.slot = Slot(self._limiter, need, max_wait, _LEASE)
        self._began = 0.0

    def _taking(self) -> Plan[Acquisition]:
        mode = "take" if self._outbound.usage is None else "reserve"
        return self._limiter.acquire_plan(self._need, self._max_wait, mode=mode)

    def begin(self) -> None:
        """Take what the call needs."""
        if self._delay:
            self._limiter.run_plan(_sleep(self._delay))
        try:
            if self.slot is not None:
                self.slot.__enter__()
                self._taken = self.slot.acquisition
            else:
                self._taken = self._limiter.run_plan(self._taking())
        except StoreUnavailableError:
            self._go_on_alone()
        self._began = time.monotonic()

    async def abegin(self) -> None:
        """:meth:`begin` for asyncio."""
        if self._delay:
            await self._limiter.arun_plan(_sleep(self._delay))
        try:
            if self.slot is not None:
                await self.slot.__aenter__()
                self._taken = self.slot.acquisition
            else:
                self._taken = await self._limiter.arun_plan(self._taking())
        except StoreUnavailableError:
            self._go_on_alone()
        self._began = time.monotonic()

    def _go_on_alone(self) -> None:
        if not self._outbound.is_open:
            raise  # noqa: PLE0704  # called where it was caught
        self.slot = None

    def took(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._began

    def answered(self, heard: Heard, answer: Any) -> None:
        """Tell the limits what an answer says, and what it was worth."""
        with self._not_lost():
            worth = self._worth(heard, answer)
            self._limiter.run_plan(self._learning(heard, worth))

    async def aanswered(self, heard: Heard, answer: Any) -> None:
        """:meth:`answered` for asyncio; ``usage`` may be a coroutine function."""
        with self._not_lost():
            worth = self._worth(heard, answer)
            if isawaitable(worth):
                worth = await worth
            await self._limiter.arun_plan(self._learning(heard, worth))

    @contextmanager
    def _not_lost(self) -> Iterator[None]:
        """The answer is there, and must not be lost because its limits cannot be told of it."""
        try:
            yield
        except StoreError as error:
            _not_told(error)
        except Exception:
            logger.exception("What a call was worth is not known: its estimate stands")

    def _worth(self, heard: Heard, answer: Any) -> Any:
        """What the call was worth, if that is told afterwards: nothing, if it was refused."""
        if self._taken is None or self._outbound.usage is None:
            return None
        return 0 if heard.refused else self._outbound.usage(answer)

    def _learning(self, heard: Heard, worth: Any) -> Plan[None]:
        plans, says = self._limiter.plans, heard.refused or heard.stop or heard.left is not None
        learners = self._outbound.learners(self._need)
        if learners and (says or self._outbound.adapts):
            self._stop = stop = yield from plans.learn(learners, heard)
            if stop:
                self._outbound.stopped(stop)
        if self._taken is not None and worth is not None:
            yield from plans.settle(self._taken, worth)

    def may_go_again(self, heard: Heard) -> bool:
        """Whether the call was refused and is to be made again."""
        return heard.refused and self._resends > 0

    def again(self, heard: Heard) -> Passage | None:
        """The next attempt at a call that was refused, and has ended; it has begun.

        It waits until the limits go on, and for ``max_wait`` more. None: they did not allow it, or
        there were as many attempts as may be. Then the answer is the caller's.

        Raises:
            TaskThrottled: within a task that a worker runs, this is the way to wait.
        """
        following = self._following(heard)
        try:
            if following is not None:
                following.begin()
        except Throttled:
            return None
        return following

    async def aagain(self, heard: Heard) -> Passage | None:
        """:meth:`again` for asyncio."""
        following = self._following(heard)
        try:
            if following is not None:
                await following.abegin()
        except Throttled:
            return None
        return following

    def _following(self, heard: Heard) -> Passage | None:
        wanted = DEFAULT_STOP_SECONDS if heard.stop is None else heard.stop
        told = self._stop is not None
        stop = self._stop if self._stop is not None else wanted
        if not self._limiter.may_resend(self._need, self._taken, stop, self._resends):
            return None
        # If the limits were not told, they do not stop the call.
        delay = 0.0 if told else stop
        longest = self._outbound.max_wait + (stop if stop < inf else 0.0)
        return Passage(self._outbound, self._need, longest, self._resends - 1, delay)

    def end(self) -> None:
        """The call is over, with all of its answer."""
        slot, self.slot = self.slot, None
        if slot is not None:
            try:
                slot.__exit__(None, None, None)
            except StoreError as error:  # its lease runs out in any case
                _not_told(error)

    async def aend(self) -> None:
        """:meth:`end` for asyncio."""
        slot, self.slot = self.slot, None
        if slot is not None:
            try:
                await slot.__aexit__(None, None, None)
            except StoreError as error:
                _not_told(error)


#: Seconds after which a slot is free again if this process dies.
_LEASE = 30.0


def _sleep(seconds: float) -> Plan[None]:
    yield Sleep(seconds)


def _not_told(error: StoreError) -> None:
    logger.warning("Limits could not be told of an answer: %s", error)
