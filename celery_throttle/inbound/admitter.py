"""Admits requests or refuses them: the core of the middlewares and of the decorator."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from celery_throttle.errors import ConfigurationError, StoreError, Throttled, shown
from celery_throttle.inbound.answers import Answer, Fields, Policies, outage, refusal
from celery_throttle.inbound.rules import KeyFunction, KeySpec, RequestCost, Rules
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limiter.leases import Slot, enter_step, exit_step
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.store.steps import Step, Steps, arun_steps, run_steps

logger = logging.getLogger(__name__)

#: What happens to requests while the limits server cannot be reached.
OUTAGE_MODES = ("open", "closed")


class Admission(NamedTuple):
    """The outcome of a request."""

    #: None if no limit applies, or the limits server cannot be reached.
    decision: Decision | None = None
    fields: Fields = ()  #: to add to the app's answer
    answer: Answer | None = None  #: for a request that must not reach the app
    error: Throttled | StoreError | None = None  #: the same as an exception
    slot: Slot | None = None  #: held until the request is done


class OutageLog:
    """Logs once when the limits server is lost, and once when it is back."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._lost = False
        self._lock = threading.Lock()

    def record_failure(self, error: StoreError) -> None:
        """A call failed."""
        if self._change(lost=True):
            effect = "pass without limits" if self._mode == "open" else "are answered with 503"
            logger.warning("Limits cannot be checked; requests %s: %s", effect, error)

    def record_success(self) -> None:
        """A call succeeded."""
        if self._lost and self._change(lost=False):
            logger.warning("The limits are in force again")

    def _change(self, *, lost: bool) -> bool:
        with self._lock:
            changed, self._lost = self._lost is not lost, lost
        return changed


@dataclass(frozen=True, slots=True)
class Admitter:
    """Decides about requests. Made by :meth:`read`."""

    rules: Rules
    max_wait: float  #: seconds
    lease: float  #: seconds
    outage_mode: str  #: one of OUTAGE_MODES
    policies: Policies
    headers: bool  #: whether answers have the header fields of the policies
    outage_log: OutageLog

    @classmethod
    def read(
        cls,
        limits: LimitHandles,
        *,
        key: KeySpec | None = None,
        cost: RequestCost = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
    ) -> Admitter:
        """Check the arguments of a user; see :class:`~celery_throttle.inbound.ThrottledWSGI`.

        Raises:
            ThrottleError: An argument is wrong.
        """
        rules = Rules.read(limits, key, cost)
        if outage not in OUTAGE_MODES:
            raise ConfigurationError(
                f"outage must be one of {', '.join(OUTAGE_MODES)}, not {shown(outage)}"
            )
        Slot(rules.limiter, rules.limiter.require(rules.refs, 1), max_wait, lease)  # checks both
        _ = rules.limiter.store  # that of a Celery app reads the URL, which may be wrong
        policies = Policies.of(rules.limits)
        return cls(rules, max_wait, lease, outage, policies, headers, OutageLog(outage))

    def adapted(self, adapt: Callable[[KeyFunction], KeyFunction]) -> Admitter:
        """Return an admitter whose key and cost functions take another kind of request."""
        return replace(self, rules=self.rules.adapted(adapt))

    def admit(self, request: Any) -> Admission:
        """Decide about a request. Pass the outcome to :meth:`release` when the request is done.

        Raises:
            ThrottleError: The key or cost function returned no valid key or cost.
        """
        return run_steps(self._admit(request))

    async def aadmit(self, request: Any) -> Admission:
        """:meth:`admit` for asyncio."""
        return await arun_steps(self._admit(request))

    def release(self, admission: Admission) -> None:
        """Release the slot of a request that is done."""
        run_steps(self._release(admission))

    async def arelease(self, admission: Admission) -> None:
        """:meth:`release` for asyncio. A cancelled caller does not interrupt it."""
        await arun_steps(self._release(admission))

    def _admit(self, request: Any) -> Steps[Admission]:
        limiter, requirement = self.rules.limiter, self.rules.requirement(request)
        if requirement is None:
            return Admission()
        slot = None
        if find_slot_indexes((ref.name for ref in requirement.refs), limiter.limits):
            slot = Slot(limiter, requirement, self.max_wait, self.lease)
            step = enter_step(slot)
        else:
            arguments = requirement, self.max_wait
            step = Step(
                partial(limiter.try_take, *arguments), partial(limiter.atry_take, *arguments)
            )
        try:
            decision = yield step
        except (Throttled, StoreError) as error:
            return self._failed(error)
        return self._decided(requirement, decision, slot)

    def _release(self, admission: Admission) -> Steps[None]:
        if admission.slot is not None:
            try:
                yield exit_step(admission.slot)
            except StoreError as error:  # the request is done all the same; the lease expires
                self.outage_log.record_failure(error)

    def _decided(
        self, requirement: Requirement, decision: Decision, slot: Slot | None
    ) -> Admission:
        self.outage_log.record_success()
        if not decision.allowed:
            name = str(decision.limited_by)
            key = next(ref.key for ref in requirement.refs if ref.name == name)
            error = Throttled(name, key, decision.retry_after, decision.paused)
            return self._refused(decision, error)
        return Admission(decision, self._fields(decision), slot=slot)

    def _failed(self, error: Throttled | StoreError) -> Admission:
        if isinstance(error, Throttled):
            self.outage_log.record_success()
            # The error knows no more; fewer units remain than the request needs.
            decision = Decision(
                allowed=False,
                burst=self.policies.capacity(error.limit),
                remaining=0,
                retry_after=error.retry_after,
                reset_after=0.0,
                limited_by=error.limit,
                paused=error.paused,
            )
            return self._refused(decision, error)
        self.outage_log.record_failure(error)
        if self.outage_mode == "open":
            return Admission()
        return Admission(answer=outage(), error=error)

    def _refused(self, decision: Decision, error: Throttled) -> Admission:
        wait = self.policies.wait(decision)
        fields = self._fields(decision)
        answer = refusal(error.limit, wait, fields, named=self.headers)
        return Admission(decision, fields, answer, error)

    def _fields(self, decision: Decision) -> Fields:
        return tuple(self.policies.fields(decision)) if self.headers else ()
