"""Rules: which limits apply to a request, by which key, at what cost. No I/O.

The arguments of a user are checked when the app is set up, so a request can only fail by a
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from celery_throttle.errors import ConfigurationError, LimitError, shown
from celery_throttle.inbound.answers import Policies
from celery_throttle.limiter.arguments import (
    LimitHandles,
    call_function,
    check_handles,
    parse_some,
)
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.cost import to_millionths
from celery_throttle.limits.key import LimitRef, encode_key, parse_refs
from celery_throttle.limits.requirement import CallFunction, Costs, Requirement, make_requirement
from celery_throttle.operations.replies import unknown_limit_error
from celery_throttle.store.steps import Steps

#: A function that returns the key of a request, or None if no limit applies to it.
KeyFunction = Callable[..., Any]

#: A key function for all limits without a key, or a mapping of key functions by the name of the
#: limit.
KeySpec = CallFunction | Mapping[str, CallFunction]

#: Units, a mapping of units by the name of the limit, or a function that returns either.
RequestCost = Costs | CallFunction


#: A handle, a list of handles of one limiter, or a function that returns either, or None if no
#: limit applies to a request.
RequestLimits = LimitHandles | CallFunction


class Rules(NamedTuple):
    """The limits of one request, or of all requests. Made by :meth:`of`."""

    limiter: LimiterCore
    refs: Sequence[LimitRef]  #: with keys where a limit has one of its own
    policies: Policies

    @classmethod
    def of(cls, limits: LimitHandles) -> Rules:
        """Read limits. UnknownLimitError unless the code defines them."""
        handles = check_handles(limits)
        limiter = handles[0].limiter
        refs = tuple(parse_refs([handle.ref for handle in handles]))
        for ref in refs:
            if ref.name not in limiter.limits:
                raise unknown_limit_error(ref.name, limiter.limits)
        return cls(limiter, refs, Policies({ref.name: limiter.limits[ref.name] for ref in refs}))

    def check_costs(self, cost: Costs) -> None:
        """Raise LimitError if a cost is not a number, or more than a limit can ever admit."""
        for ref in self.refs:
            units: Any = cost.get(ref.name, 1) if isinstance(cost, Mapping) else cost
            for limit in self.limiter.limits[ref.name]:
                limit.check_cost(units, ref.name)


class Options:
    """What a user gives for limits, keys and costs of requests.

    The arguments and their errors are those of the middlewares. ``is_async``: whether functions may
    be async.
    """

    def __init__(
        self, limits: RequestLimits, key: KeySpec | None, cost: RequestCost, *, is_async: bool
    ) -> None:
        self._limits, self._key, self._cost = limits, key, cost
        #: Those of all requests; None if they depend on the request.
        self.rules: Rules | None = None
        self._fixed: Requirement | None = None  # of all requests, likewise
        if callable(cost):
            check_function(cost, "cost", may_be_async=is_async)
        else:
            for units in cost.values() if isinstance(cost, Mapping) else (cost,):
                to_millionths(units)
        if callable(limits) and not isinstance(limits, LimitHandle):
            check_function(limits, "limits", may_be_async=is_async)
        else:
            self.rules = Rules.of(limits)
            _check_key_names(key, [ref.name for ref in self.rules.refs if ref.key is None])
        _check_key_functions(key, is_async=is_async)
        if self.rules is not None and not callable(cost):
            requirement = make_requirement(self.rules.refs, cost)
            self.rules.check_costs(cost)
            self._fixed = requirement if key is None else None

    def rules_of(self, request: Any) -> Steps[Rules | None]:
        """Return the rules of a request; None if no limit applies to it.

        Raises (by the steps):
            LimitFunctionError: the function returned a wrong value. What it raises is raised.
            UnknownLimitError: the code does not define a limit that it returned.
        """
        if self.rules is not None:
            return self.rules
        function: Any = self._limits
        parse = partial(parse_some, Rules.of)
        return (yield from call_function(function, "limits", parse, request))

    def requirement(self, rules: Rules, request: Any) -> Steps[Requirement | None]:
        """Return what a request needs of its rules; None if no limit applies to it.

        Raises (by the steps):
            LimitFunctionError: a function returned no valid key or cost.
        """
        if self._fixed is not None:
            return self._fixed
        refs = yield from self._refs_of(rules, request)
        if not refs:
            return None
        require = partial(_require, rules, refs)
        if not callable(self._cost):
            return require(self._cost)
        return (yield from call_function(self._cost, "cost", require, request))

    def _refs_of(self, rules: Rules, request: Any) -> Steps[Sequence[LimitRef]]:
        """Return the limits with the keys of a request; each once, as a client may send any key."""
        key: Any = self._key
        if key is None:
            return rules.refs
        names = {ref.name for ref in rules.refs if ref.key is None}
        keys: dict[str, str | None] = {}
        if isinstance(key, Mapping):
            for name in names.intersection(key):
                keys[name] = yield from call_function(key[name], "key", _encode_some, request)
        else:
            value = yield from call_function(key, "key", _encode_some, request)
            if value is None:
                return ()
            keys = dict.fromkeys(names, value)
        found = []
        for ref in rules.refs:
            if ref.key is not None or ref.name not in keys:
                found.append(ref)
            elif keys[ref.name] is not None:
                found.append(LimitRef(ref.name, keys[ref.name]))
        return tuple(dict.fromkeys(found))


def _require(rules: Rules, refs: Sequence[LimitRef], cost: Any) -> Requirement:
    """Return a requirement, without the costs of limits that do not apply to a request."""
    if isinstance(cost, Mapping):
        # make_requirement() rejects the names of no limit.
        names = {ref.name for ref in refs} | set(cost).difference(rules.limiter.limits)
        cost = {name: units for name, units in cost.items() if name in names}
    return make_requirement(refs, cost)


def _encode_some(key: Any) -> str | None:
    """Encode the key of a request; None if no limit applies to it."""
    return None if key is None else encode_key(key)


def _check_key_names(key: object, names: Sequence[str]) -> None:
    if key is not None and not names:
        raise ConfigurationError("each limit has a key of its own, so key= would not be used")
    for name in key if isinstance(key, Mapping) else ():
        if name not in names:
            raise LimitError(
                f"a key is given for {shown(name)}; allowed: limits without a key of their own: "
                f"{', '.join(names)}"
            )


def _check_key_functions(key: object, *, is_async: bool) -> None:
    if isinstance(key, Mapping):
        for name, function in key.items():
            check_function(function, f"key of {name!r}", may_be_async=is_async)
    elif key is not None:
        check_function(key, "key", may_be_async=is_async)


def check_function(function: object, name: str, *, may_be_async: bool = False) -> None:
    """Raise ConfigurationError unless the argument of this name is a function that is allowed."""
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable, not {shown(function)}")
    if iscoroutinefunction(function) and not may_be_async:
        raise ConfigurationError(f"{name} must not be async: {shown(function)}")
