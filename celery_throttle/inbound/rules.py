"""Rules: which limits apply to a request, by which key, at what cost. No I/O.

The arguments of a user are checked when the app is set up, so a request can only fail by a key or
cost function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from celery_throttle.errors import ConfigurationError, LimitError, shown
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.handles import LimitHandles, check_handles
from celery_throttle.limits.key import LimitRef, encode_key, parse_refs
from celery_throttle.limits.requirement import CallFunction, Costs, Requirement, make_requirement
from celery_throttle.operations.replies import unknown_limit_error

#: A function that returns the key of a request, or None if no limit applies to it.
KeyFunction = Callable[..., Any]

#: A key function for all limits without a key, or a mapping of key functions by the name of the
#: limit.
KeySpec = CallFunction | Mapping[str, CallFunction]

#: Units, a mapping of units by the name of the limit, or a function that returns either.
RequestCost = Costs | CallFunction


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of requests. Made by :meth:`read`."""

    limiter: LimiterCore
    refs: tuple[LimitRef, ...]  #: with keys where a limit has one of its own
    key: KeySpec | None  #: None if no limit is split by a key of the request
    cost: RequestCost
    fixed: Requirement | None  #: of all requests; None if it depends on the request

    @classmethod
    def read(cls, limits: LimitHandles, key: KeySpec | None, cost: RequestCost) -> Rules:
        """Check the arguments of a user. The errors are those of the middlewares."""
        handles = check_handles(limits)
        limiter = handles[0].limiter
        refs = tuple(parse_refs([handle.ref for handle in handles]))
        for ref in refs:
            if ref.name not in limiter.limits:
                raise unknown_limit_error(ref.name, limiter.limits)
        _check_key(key, refs)
        if callable(cost):
            check_function(cost, "cost")
            return cls(limiter, refs, key, cost, None)
        requirement = make_requirement(refs, cost)
        for ref in refs:
            units: Any = cost.get(ref.name, 1) if isinstance(cost, Mapping) else cost
            for limit in limiter.limits[ref.name]:
                limit.check_cost(units, ref.name)
        return cls(limiter, refs, key, cost, requirement if key is None else None)

    def requirement(self, request: Any) -> Requirement | None:
        """Return what a request needs; None if no limit applies to it.

        KeyValueError or CostError if the key or cost function returned no valid key or cost.
        """
        if self.fixed is not None:
            return self.fixed
        refs = self._refs_of(request)
        if not refs:
            return None
        cost: Any = self.cost
        if callable(cost):
            cost = cost(request)
        if isinstance(cost, Mapping):
            unknown = set(cost) - {ref.name for ref in self.refs}
            names = {ref.name for ref in refs} | unknown  # make_requirement() rejects these
            cost = {name: units for name, units in cost.items() if name in names}
        return make_requirement(refs, cost)

    def _refs_of(self, request: Any) -> tuple[LimitRef, ...]:
        """Return the limits with the keys of a request; each once, as a client may send any key."""
        key: Any = self.key
        if key is None:
            return self.refs
        if isinstance(key, Mapping):
            keys = {name: function(request) for name, function in key.items()}
        else:
            value = key(request)
            if value is None:
                return ()
            keys = {ref.name: value for ref in self.refs}
        found = []
        for ref in self.refs:
            if ref.key is not None or ref.name not in keys:
                found.append(ref)
            elif keys[ref.name] is not None:
                found.append(LimitRef(ref.name, encode_key(keys[ref.name])))
        return tuple(dict.fromkeys(found))


def _check_key(key: object, refs: Sequence[LimitRef]) -> None:
    if key is None:
        return
    names = list(dict.fromkeys(ref.name for ref in refs if ref.key is None))
    if not names:
        raise ConfigurationError("each limit has a key of its own, so key= would not be used")
    if not isinstance(key, Mapping):
        check_function(key, "key")
        return
    for name, function in key.items():
        if name not in names:
            raise LimitError(
                f"a key is given for {shown(name)}; allowed: limits without a key of their own: "
                f"{', '.join(names)}"
            )
        check_function(function, f"key of {name!r}")


def check_function(function: object, name: str) -> None:
    """Raise ConfigurationError unless the argument of this name is a plain function."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable, not {shown(function)}")
    if iscoroutinefunction(function):
        raise ConfigurationError(f"{name} must not be async: {shown(function)}")
