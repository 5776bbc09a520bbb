"""Guard: the limits of one client's calls, by the quantities that the API counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from math import inf
from typing import Any, TypeVar

from celery_throttle.clients.profiles.profile import (
    REQUESTS,
    Meaning,
    Profile,
    Quota,
    Units,
    no_units,
)
from celery_throttle.clients.profiles.reading import Reading
from celery_throttle.errors import (
    LimitValueError,
    ThrottleError,
    nearest,
    raised_error,
    shown,
)
from celery_throttle.limiter.arguments import (
    LimitHandles,
    call_function,
    check_handles,
    function_text,
    parse_some,
)
from celery_throttle.limiter.core import CACHE_SIZE, LimiterCore
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.cost import Cost, to_units
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import check_whole
from celery_throttle.limits.requirement import CallFunction, Requirement, has_slots
from celery_throttle.store.steps import Steps

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: The limits of a client's calls, or these by the quantity that they count, or a function of the
#: request that returns either.
GuardedLimits = LimitHandles | Mapping[str, LimitHandles] | CallFunction

#: Units for each limit, or a mapping of units by quantity, or a function that returns either.
CallCost = Cost | Units | CallFunction


#: A function that returns units, in the forms of a cost, from what an answer holds.
Usage = Callable[[Any], Cost | Units]

#: Seconds by which a pause must outlast the previous one to be logged.
_LOGGED_EXTENSION_SECONDS = 0.5

#: Seconds between two log lines about parts of answers that cannot be used.
WARNING_INTERVAL_SECONDS = 60.0


@dataclass(eq=False)
class Guard:
    """The limits of one client's calls.

    The fields are the arguments of :class:`~celery_throttle.clients.httpx.ThrottledTransport`. Of
    other calls, ``limits`` and ``cost`` take the arguments, and ``usage`` the result.

    Raises:
        LimitError: A field is invalid.
    """

    limits: GuardedLimits
    profile: Profile
    cost: CallCost | None = None
    usage: Usage | None = None
    max_wait: float = 0.0
    retry_refused: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.profile, Profile):
            raise LimitValueError(
                "profile must be a Profile such as celery_throttle.clients.profiles.GITHUB, not "
                f"{shown(self.profile)}"
            )
        if self.usage is not None and not callable(self.usage):
            raise LimitValueError(f"usage must be callable, not {shown(self.usage)}")
        self.max_wait = check_duration(self.max_wait, "max_wait")
        check_whole("retry_refused", self.retry_refused, least=0)
        #: The limits that the API has refused since it last accepted a request: a success ends the
        #: row of refusals.
        self.in_row: set[LimitRef] = set()
        self._paused_until = 0.0
        self._warned_at = -WARNING_INTERVAL_SECONDS
        is_function = callable(self.limits) and not isinstance(self.limits, LimitHandle)
        self._fixed = None if is_function else self._count(self.limits)
        if self._fixed is not None and not callable(self.cost):
            self._fixed.require(1 if self.cost is None else self.cost)

    def limits_of(self, *args: Any, **kwargs: Any) -> Steps[CountedLimits | None]:
        """Return the limits of a call; None if no limit applies to it.

        The arguments are passed to the function of the limits.
        """
        if self._fixed is not None:
            return self._fixed
        function: Any = self.limits
        parse = partial(parse_some, self._count)
        return (yield from _call(function, "limits", parse, *args, **kwargs))

    def _count(self, limits: Any) -> CountedLimits:
        """Return limits with their quantities.

        Raises:
            LimitError: as :class:`CountedLimits`, or a quantity is a misspelt one of the profile.
        """
        counted = CountedLimits(self, limits)
        if self.cost is None and self.usage is None and self.profile.usage is not no_units:
            known = self.profile.names()
            for quantity in (one for one in counted.quantities.values() if one not in known):
                # Any other name is that of a limit of one's own: one unit of each request.
                similar = get_close_matches(quantity, known, 1, cutoff=0.8)
                if similar:
                    raise LimitValueError(
                        f"{shown(quantity)} is no quantity of {self.profile.name}; "
                        f"write {similar[0]!r}"
                    )
        return counted

    def requirement(
        self, limits: CountedLimits, request: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> Steps[Requirement]:
        """Return what a call requires of its limits.

        ``request``: returns the JSON of the request, for the estimate of the profile. The other
        arguments are passed to the function ``cost``.
        """
        if callable(self.cost):
            return (yield from _call(self.cost, "cost", limits.require, *args, **kwargs))
        if self.cost is not None:
            return limits.require(self.cost)
        if self.profile.estimate is no_units:
            return limits.require(1)
        body = request()
        estimate = self.profile.estimate(body) if isinstance(body, Mapping) else {}
        # A request without text, such as that for a batch, costs a unit until it is settled.
        return limits.estimate({name: units for name, units in estimate.items() if units > 0})

    @property
    def reads_bodies(self) -> bool:
        """Whether the bodies of successful answers tell something."""
        return self.usage is not None or self.profile.usage is not no_units

    def estimates(self, quantities: Iterable[str]) -> bool:
        """Return whether the cost is an estimate, as the answer tells the actual cost."""
        tells = self.usage is not None or any(one != REQUESTS for one in quantities)
        return self.reads_bodies and tells

    def read_usage(self, document: Any) -> Mapping[str, Any]:
        """Return the units that a part of an answer tells, by quantity; under "" for each limit."""
        try:
            if self.usage is None:
                return self.profile.usage(document) if isinstance(document, Mapping) else {}
            units = self.usage(document)
        except Exception:
            logger.exception("The true cost of a call is unknown: its estimate stands")
            return {}
        return units if isinstance(units, Mapping) else {"": units}

    def note_answers(self, answers: Mapping[LimitRef, Feedback]) -> None:
        """Remember whose next success has to be reported, as it ends a row of refusals."""
        for ref, answer in answers.items():
            if answer.refused or answer.overloaded:
                if len(self.in_row) >= CACHE_SIZE:  # the server forgets a row after some minutes
                    self.in_row.clear()
                self.in_row.add(ref)
            elif answer.took is not None:
                self.in_row.discard(ref)

    def log_pause(self, names: Iterable[str], seconds: float) -> None:
        """Log that an answer has paused limits, unless it was logged just now."""
        until = time.monotonic() + seconds
        if until > self._paused_until + _LOGGED_EXTENSION_SECONDS:
            duration = "until it is resumed" if seconds == inf else f"for {seconds:.3f} s"
            about = ", ".join(map(repr, names))
            logger.warning("The API behind %s asks for a pause: no calls %s", about, duration)
        self._paused_until = max(until, self._paused_until)

    def log_warnings(self, names: Iterable[str], warnings: Sequence[str]) -> None:
        """Log what cannot be used of an answer, unless that was done within the last minute."""
        if warnings and time.monotonic() - self._warned_at > WARNING_INTERVAL_SECONDS:
            self._warned_at = time.monotonic()
            about, text = ", ".join(map(repr, names)), "; ".join(warnings)
            logger.warning("Odd answer of the API behind %s: %s", about, text)


class CountedLimits:
    """The limits of one call, or of all calls that have the same; see :class:`Guard`.

    Raises:
        LimitValueError: they are none, or of several limiters, or one counts two quantities.
    """

    def __init__(self, guard: Guard, limits: Any) -> None:
        handles: list[LimitHandle] = []
        #: The quantity that each limit counts, by the name of the limit.
        self.quantities: dict[str, str] = {}
        groups = limits if isinstance(limits, Mapping) else {REQUESTS: limits}
        for quantity, some in groups.items():
            if not isinstance(quantity, str) or not quantity:
                raise LimitValueError(
                    f"a quantity must be text such as 'tokens', not {shown(quantity)}"
                )
            for handle in check_handles(some):
                handles.append(handle)
                name = handle.ref.name
                other = self.quantities.setdefault(name, quantity)
                if other != quantity:
                    raise LimitValueError(
                        f"limit {name!r} counts {other!r} and {quantity!r}; allowed: one quantity"
                    )
        check_handles(handles)
        self._guard = guard
        self._refs = [handle.ref for handle in handles]
        self.limiter: LimiterCore = handles[0].limiter
        #: Whether one of the limits counts what an answer tells.
        self.has_estimates = guard.estimates(self.quantities.values())

    def require(self, cost: Any) -> Requirement:
        """Return the requirement of a call of this cost; see :class:`Guard`.

        Raises:
            LimitError: a cost is none, or is of a quantity that no limit counts.
        """
        if not isinstance(cost, Mapping):
            return self.limiter.require(self._refs, cost)
        known = self.quantities.values()
        unknown = next((quantity for quantity in cost if quantity not in known), None)
        if unknown is not None:
            raise LimitValueError(
                f"cost names {shown(unknown)}, which is no quantity of the limits; "
                f"{nearest(str(unknown), known)}"
            )
        return self.estimate(cost)

    def estimate(self, units: Units) -> Requirement:
        """Return the requirement of a call of these units; other quantities may be among them."""
        costs = {name: units.get(quantity, 1) for name, quantity in self.quantities.items()}
        return self.limiter.require(self._refs, costs)

    def actual(self, units: Mapping[str, Any], requirement: Requirement) -> dict[str, Any]:
        """Return the actual cost by the name of the limit; what is not told is as estimated."""
        found = {}
        for ref, estimate in zip(self._refs, requirement.costs, strict=True):
            other = units.get("", to_units(estimate))
            found[ref.name] = units.get(self.quantities[ref.name], other)
        return found

    def kept(self, quantities: Sequence[str]) -> dict[str, Any]:
        """Return the actual cost of a request that did not succeed: one request, or nothing.

        ``quantities``: those that the API counts all the same.
        """
        return {name: int(quantity in quantities) for name, quantity in self.quantities.items()}

    # What an answer says.

    def feedback(self, reading: Reading, took: float | None) -> dict[LimitRef, Feedback]:
        """Return what an answer says about each of the limits; nothing if they need not be told.

        ``took``: seconds since the request; None if it is not known whether the API accepted it.
        """
        is_success = took is not None and reading.meaning is not Meaning.FAILURE
        tells = is_success and (self.is_adaptive or self.is_in_row)
        is_refused = reading.meaning in (Meaning.REFUSAL, Meaning.OVERLOAD)
        if not (tells or is_refused or reading.quotas):
            return {}  # as most answers
        found: dict[LimitRef, Feedback] = {}
        for ref in self._refs:
            quantity = self.quantities[ref.name]
            quota = reading.quota(quantity) or Quota(quantity)
            found[ref] = Feedback(
                refused=reading.meaning is Meaning.REFUSAL
                and (not reading.refused or quantity in reading.refused),
                overloaded=reading.meaning is Meaning.OVERLOAD,
                stop=reading.stop(quantity),
                left=quota.remaining,
                # Without its period, the size of a quota says nothing about the rate.
                limit=None if quota.period is None else quota.limit,
                period=quota.period,
                took=took if is_success else None,
            )
        tells = tells or any(
            each.refused or each.overloaded or each.stop or each.left is not None
            for each in found.values()
        )
        return found if tells else {}

    @property
    def is_in_row(self) -> bool:
        """Whether the next success has to be reported, as it ends a row of refusals."""
        return not self._guard.in_row.isdisjoint(self._refs)

    # The definitions in the code are read at the first call, as the settings of an app are.

    @cached_property
    def _definitions(self) -> list[Limit]:
        defined = self.limiter.limits
        return [limit for name in self.quantities for limit in defined.get(name, ())]

    @cached_property
    def takes_slots(self) -> bool:
        """Whether one of the limits has slots."""
        return any(map(has_slots, self._definitions))

    @cached_property
    def is_adaptive(self) -> bool:
        """Whether one of the limits is adaptive: it learns from every answer."""
        return any(limit.is_adaptive for limit in self._definitions)

    @cached_property
    def fails_open(self) -> bool:
        """Whether calls go out while the limits server cannot be reached."""
        known = all(name in self.limiter.limits for name in self.quantities)
        return known and all(limit.outage == "open" for limit in self._definitions)


def _call(
    function: Callable[..., Any], option: str, parse: Callable[[Any], T], *args: Any, **kwargs: Any
) -> Steps[T]:
    """Call a function; what it raises is raised as LimitFunctionError, which names it."""
    try:
        return (yield from call_function(function, option, parse, *args, **kwargs))
    except ThrottleError:
        raise
    except Exception as error:
        raise raised_error(function_text(function, option), error) from error
