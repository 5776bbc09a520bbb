"""Admits requests or refuses them: the core of the middlewares and of the decorator."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from celery_throttle.errors import ConfigurationError, StoreError, Throttled, shown
from celery_throttle.inbound.answers import Answer, Fields, outage_answer, refused_answer
from celery_throttle.inbound.rules import KeySpec, Options, RequestCost, RequestLimits
from celery_throttle.limiter.leases import Slot, check_lease, enter_step, exit_step
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.requirement import find_slot_indexes
from celery_throttle.store.steps import Step, Steps

logger = logging.getLogger(__name__)

App = TypeVar("App")

#: The key in the environ or scope under which an app finds the Decision about its request.
DECISION = "celery_throttle.decision"

#: What requests do while the limits server cannot be reached, by the argument ``outage``.
_OUTAGES = {"open": "pass without limits", "closed": "are answered with 503"}


class Refusal(NamedTuple):
    """The refusal of a request, which must not reach the app."""

    answer: Answer
    error: Throttled | StoreError


class Admission(NamedTuple):
    """The outcome of a request."""

    #: None if no limit applies, or the limits server cannot be reached.
    decision: Decision | None = None
    fields: Fields = ()  #: to add to the app's answer
    refusal: Refusal | None = None
    slot: Slot | None = None  #: held until the request is done


class OutageLog:
    """Logs once when the limits server is lost, and once when it is back."""

    def __init__(self, outage: str) -> None:
        if outage not in _OUTAGES:
            raise ConfigurationError(
                f"outage must be one of {', '.join(_OUTAGES)}, not {shown(outage)}"
            )
        self.is_open = outage == "open"
        self._effect = _OUTAGES[outage]
        self._lost = False
        self._lock = threading.Lock()

    def record(self, error: StoreError | None = None) -> None:
        """Record the outcome of a call: an error, or a success."""
        lost = error is not None
        if lost is self._lost:
            return
        with self._lock:
            changed, self._lost = self._lost is not lost, lost
        if changed and lost:
            logger.warning("Limits cannot be checked; requests %s: %s", self._effect, error)
        elif changed:
            logger.warning("The limits are in force again")


@dataclass(eq=False)
class Admitter:
    """Decides about requests. For the fields, see the arguments of :class:`ThrottledWSGI`.

    Raises:
        ThrottleError: A field is wrong.
    """

    options: Options
    outages: OutageLog
    max_wait: float
    lease: float
    headers: bool

    def __post_init__(self) -> None:
        self.max_wait = check_duration(self.max_wait, "max_wait")
        self.lease = check_lease(self.lease)
        if self.options.rules is not None:
            # That of a Celery app reads the URL, which may be wrong.
            _ = self.options.rules.limiter.store

    def admit(self, request: Any) -> Steps[Admission]:
        """Decide about a request. Pass the outcome to :meth:`release` when the request is done.

        Raises:
            ThrottleError: A function returned no valid limit, key or cost. What a function raises
                is left to the framework.
        """
        rules = yield from self.options.rules_of(request)
        if rules is None:
            return Admission()
        requirement = yield from self.options.requirement(rules, request)
        if requirement is None:
            return Admission()
        limiter, policies = rules.limiter, rules.policies
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
            decision: Decision = yield step
        except StoreError as error:
            self.outages.record(error)
            closed = Admission(refusal=Refusal(outage_answer(), error))
            return Admission() if self.outages.is_open else closed
        except Throttled as error:  # of a slot; it knows no more than that too few are left
            decision = policies.refused(error)
        self.outages.record()
        fields = tuple(policies.fields(decision)) if self.headers else ()
        if decision.allowed:
            return Admission(decision, fields, slot=slot)
        name = str(decision.limited_by)
        key = next(ref.key for ref in requirement.refs if ref.name == name)
        answer = refused_answer(name, policies.wait(decision), fields, named=self.headers)
        refused = Throttled(name, key, decision.retry_after, decision.paused)
        return Admission(decision, fields, Refusal(answer, refused))

    def release(self, admission: Admission) -> Steps[None]:
        """Release the slot of a request that is done. A cancelled caller does not interrupt it."""
        if admission.slot is not None:
            try:
                yield exit_step(admission.slot)
            except StoreError as error:  # the request is done all the same; the lease expires
                self.outages.record(error)


class Middleware(Generic[App]):
    """An app with limits; for the arguments, see the subclasses."""

    is_async = False  #: whether functions may be async

    def __init__(
        self,
        app: App,
        limits: RequestLimits,
        *,
        key: KeySpec | None = None,
        cost: RequestCost = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
        refused: App | None = None,
    ) -> None:
        for name, value in (("app", app), ("refused", refused or app)):
            if not callable(value):
                raise ConfigurationError(f"{name} must be callable, not {shown(value)}")
        self.app = app
        self._refused = refused
        options = Options(limits, key, cost, is_async=self.is_async)
        self._admitter = Admitter(options, OutageLog(outage), max_wait, lease, headers)
