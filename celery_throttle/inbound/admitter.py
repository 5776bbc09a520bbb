"""Lets requests in or turns them away: the core of the middleware and of the decorator.

It asks the server of the limits, and logs when that is lost and when it is back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from celery_throttle.errors import (
    ConfigurationError,
    StoreError,
    Throttled,
    shown,
)
from celery_throttle.inbound.answers import Answer, Fields, Policies, outage, refusal
from celery_throttle.inbound.rules import CostSpec, KeyFunction, KeySpec, Rules
from celery_throttle.leases import Slot
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.requirement import Requirement, find_slot_indexes

logger = logging.getLogger(__name__)

#: What may be done with requests while the server of the limits is lost.
OUTAGES = ("open", "closed")


class Admission(NamedTuple):
    """What became of a request.

    Attributes:
        decision: None if it was not asked for, or nobody could decide.
        fields: header fields for the app's answer.
        answer: for a request that does not reach the app; ``error`` says the same to a caller.
        slot: held until the request is done.
    """

    decision: Decision | None = None
    fields: Fields = ()
    answer: Answer | None = None
    error: Throttled | StoreError | None = None
    slot: Slot | None = None


class Outage:
    """Whether the server of the limits is lost, as one app knows. Logs each change once."""

    def __init__(self, then: str) -> None:
        self._then = then
        self._lost = False
        self._lock = threading.Lock()

    def begins(self, error: StoreError) -> None:
        """A call failed."""
        if self._changes(lost=True):
            done = "pass without limits" if self._then == "open" else "are answered with 503"
            logger.warning("The limits cannot be asked, requests %s: %s", done, error)

    def ends(self) -> None:
        """A call was answered."""
        if self._lost and self._changes(lost=False):
            logger.warning("The limits are in force again")

    def _changes(self, *, lost: bool) -> bool:
        with self._lock:
            changes, self._lost = self._lost is not lost, lost
        return changes


@dataclass(frozen=True, slots=True)
class Door:
    """Decides about requests. Made by :meth:`read`.

    Attributes:
        rules: the limits of a request.
        max_wait: seconds that a request waits for them at most; None: none, with full decisions.
        lease: seconds, of slots; see :meth:`~celery_throttle.limiter.Limiter.slot`.
        then: while the server of the limits is lost: ``"open"`` or ``"closed"``.
        policies: how header fields tell of the limits.
        headers: whether answers have such header fields.
        outage: whether the server of the limits is lost.
    """

    rules: Rules
    max_wait: float | None
    lease: float
    then: str
    policies: Policies
    headers: bool
    outage: Outage

    @classmethod
    def read(
        cls,
        limits: LimitHandles,
        *,
        key: KeySpec | None = None,
        cost: CostSpec = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
    ) -> Door:
        """What a user wrote, checked; see :class:`~celery_throttle.inbound.ThrottledWSGI`.

        Raises:
            ThrottleError: it is wrong.
        """
        rules = Rules.read(limits, key, cost)
        if outage not in OUTAGES:
            allowed = ", ".join(OUTAGES)
            raise ConfigurationError(f"outage {shown(outage)} is unknown; allowed: {allowed}")
        Slot(rules.limiter, rules.limiter.require(rules.refs, 1), max_wait, lease)  # checks both
        _ = rules.limiter.store  # of a Celery app it reads the URL, which may be wrong
        queued = any(one.algorithm == "leaky-queue" for of in rules.limits.values() for one in of)
        # A queue lets nobody begin before their turn has come.
        waits = check_duration(max_wait, "max_wait") > 0 or queued
        policies = Policies.of(rules.limits)
        known = max_wait if waits else None
        return cls(rules, known, lease, outage, policies, headers, Outage(outage))

    def adapted(self, adapt: Callable[[KeyFunction], KeyFunction]) -> Door:
        """The same door for requests that the key and cost functions cannot read as they are."""
        return replace(self, rules=self.rules.adapted(adapt))

    def admit(self, request: Any) -> Admission:
        """Decide about a request; what it gives has to be released.

        Raises:
            ThrottleError: a key or a cost is none.
        """
        need = self.rules.need(request)
        if need is None:
            return Admission()
        slot = self._slot(need)
        try:
            if slot is None:
                decision = self.rules.limiter.decide(need, self.max_wait)
            else:
                decision = slot.__enter__()
        except (Throttled, StoreError) as error:
            return self._failed(error)
        return self._decided(need, decision, slot)

    async def aadmit(self, request: Any) -> Admission:
        """:meth:`admit` for asyncio."""
        need = self.rules.need(request)
        if need is None:
            return Admission()
        slot = self._slot(need)
        try:
            if slot is None:
                decision = await self.rules.limiter.adecide(need, self.max_wait)
            else:
                decision = await slot.__aenter__()
        except (Throttled, StoreError) as error:
            return self._failed(error)
        return self._decided(need, decision, slot)

    def release(self, admission: Admission) -> None:
        """Give back what is held for a request that is done."""
        if admission.slot is not None:
            try:
                admission.slot.__exit__(None, None, None)
            except StoreError as error:  # the request is done all the same; the lease runs out
                self.outage.begins(error)

    async def arelease(self, admission: Admission) -> None:
        """:meth:`release` for asyncio. It goes on if the caller is cancelled meanwhile."""
        if admission.slot is not None:
            try:
                await admission.slot.__aexit__(None, None, None)
            except StoreError as error:
                self.outage.begins(error)

    def _slot(self, need: Requirement) -> Slot | None:
        if find_slot_indexes((ref.name for ref in need.refs), self.rules.limiter.limits):
            return Slot(self.rules.limiter, need, self.max_wait or 0.0, self.lease)
        return None

    def _decided(self, need: Requirement, decision: Decision, slot: Slot | None) -> Admission:
        self.outage.ends()
        if not decision.allowed:
            name = str(decision.bound_by)
            key = next(ref.key for ref in need.refs if ref.name == name)
            error = Throttled(name, key, decision.retry_after, decision.paused)
            return self._refused(decision, error)
        return Admission(decision, self._fields(decision), slot=slot)

    def _failed(self, error: Throttled | StoreError) -> Admission:
        if isinstance(error, Throttled):
            self.outage.ends()
            wait, capacity = error.retry_after, self.policies.capacity(error.limit)
            # All that is known of it; there are no whole units left, or not as many as were asked.
            told = Decision(False, capacity, 0, wait, 0.0, error.limit, paused=error.paused)  # noqa: FBT003
            return self._refused(told, error)
        self.outage.begins(error)
        if self.then == "open":
            return Admission()
        return Admission(answer=outage(), error=error)

    def _refused(self, decision: Decision, error: Throttled) -> Admission:
        wait = self.policies.wait(decision)
        fields = self._fields(decision)
        answer = refusal(error.limit, wait, fields, named=self.headers)
        return Admission(decision, fields, answer, error)

    def _fields(self, decision: Decision) -> Fields:
        return tuple(self.policies.fields(decision)) if self.headers else ()
