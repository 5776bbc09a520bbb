"""Which limits count for a request, by which key and at which cost. Asks no server.

What a user writes is checked here when the app is set up, so that a request meets no error but that
of a key or cost function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any

from celery_throttle.errors import ConfigurationError, LimitError, shown
from celery_throttle.limiter_core import LimiterCore, LimitHandles, check_handles
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.reference import parse_refs
from celery_throttle.limits.requirement import Costs, Requirement, make_requirement
from celery_throttle.operations.replies import unknown_limit_error

#: Tells who is asking: anything that can be a key, or None.
KeyFunction = Callable[..., Any]

#: One for all limits without a key of their own, or by the name of the limit.
KeySpec = KeyFunction | Mapping[str, KeyFunction]

CostSpec = Costs | Callable[..., Costs]


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of requests. Made by :meth:`read`.

    Attributes:
        limiter: of all of them.
        refs: names, and keys where a limit has one of its own.
        key: see :data:`KeySpec`; None if no limit is split.
        cost: units, for all or by name, or what tells them.
    """

    limiter: LimiterCore
    refs: tuple[LimitRef, ...]
    key: KeySpec | None
    cost: CostSpec
    _always: Requirement | None = None

    @classmethod
    def read(cls, limits: LimitHandles, key: KeySpec | None, cost: CostSpec) -> Rules:
        """What a user wrote, checked.

        Raises:
            ConfigurationError: the key is no function, or would not be used.
            UnknownLimitError: the code defines no limit of that name.
            LimitError: these are no limits of one limiter, or one is named twice, or the cost could
                never pass.
        """
        bounds = check_handles(limits)
        limiter = bounds[0].limiter
        refs = tuple(parse_refs([bound.ref for bound in bounds]))
        for ref in refs:
            if ref.name not in limiter.limits:
                raise unknown_limit_error(ref.name, limiter.limits)
        _check_key(key, refs)
        rules = cls(limiter, refs, key, cost)
        if callable(cost):
            check_function(cost, "cost")
            return rules
        need = make_requirement(refs, cost)
        for ref, amount in zip(refs, rules.costs(cost, refs), strict=True):
            for limit in limiter.limits[ref.name]:
                limit.check_cost(amount, ref.name)
        return rules if key is not None else replace(rules, _always=need)

    @staticmethod
    def costs(cost: Costs, refs: Sequence[LimitRef]) -> list[Any]:
        """The cost of each limit, in units."""
        if isinstance(cost, Mapping):
            return [cost.get(ref.name, 1) for ref in refs]
        return [cost] * len(refs)

    @property
    def limits(self) -> Mapping[str, Limits]:
        """The limits by name, as the code defines them."""
        return {ref.name: self.limiter.limits[ref.name] for ref in self.refs}

    def need(self, request: Any) -> Requirement | None:
        """What a request needs; None: no limit counts for it.

        Raises:
            KeyValueError: the key function gave what cannot be a key.
            CostError: the cost function gave what cannot be a cost.
        """
        if self._always is not None:
            return self._always
        refs = self._split(request)
        if not refs:
            return None
        cost: Any = self.cost(request) if callable(self.cost) else self.cost
        if isinstance(cost, Mapping):
            unknown = set(cost) - {ref.name for ref in self.refs}
            names = {ref.name for ref in refs} | unknown  # of which make_requirement() complains
            cost = {name: units for name, units in cost.items() if name in names}
        return make_requirement(refs, cost)

    def _split(self, request: Any) -> tuple[LimitRef, ...]:
        """The limits with the keys of a request; each once, as a client may name a fixed key."""
        if self.key is None:
            return self.refs
        if isinstance(self.key, Mapping):
            found = [self._keyed(ref, self.key.get(ref.name), request) for ref in self.refs]
            return tuple(dict.fromkeys(ref for ref in found if ref is not None))
        value = self.key(request)
        if value is None:
            return ()
        key = encode_key(value)
        return tuple(dict.fromkeys(r if r.key else LimitRef(r.name, key) for r in self.refs))

    @staticmethod
    def _keyed(ref: LimitRef, key: KeyFunction | None, request: Any) -> LimitRef | None:
        if key is None or ref.key is not None:
            return ref
        value = key(request)
        return None if value is None else LimitRef(ref.name, encode_key(value))

    def adapted(self, adapt: Callable[[KeyFunction], KeyFunction]) -> Rules:
        """The same rules, with key and cost functions that take something else."""
        key: KeySpec | None = self.key
        if isinstance(key, Mapping):
            key = {name: adapt(function) for name, function in key.items()}
        elif key is not None:
            key = adapt(key)
        return replace(self, key=key, cost=adapt(self.cost) if callable(self.cost) else self.cost)


def _check_key(key: object, refs: Sequence[LimitRef]) -> None:
    if key is None:
        return
    free = list(dict.fromkeys(ref.name for ref in refs if ref.key is None))
    if not free:
        raise ConfigurationError("each limit has a key of its own, so key= would not be used")
    if not isinstance(key, Mapping):
        check_function(key, "key")
        return
    for name, function in key.items():
        if name not in free:
            raise LimitError(
                f"a key is given for {shown(name)}; allowed: limits without a key of their own: "
                f"{', '.join(free)}"
            )
        check_function(function, f"key of {name!r}")


def check_function(function: object, what: str) -> None:
    """Raise ConfigurationError if ``what`` cannot be called and answer at once."""
    if not callable(function) or iscoroutinefunction(function):
        kind = "is async" if callable(function) else "is no function"
        raise ConfigurationError(
            f"{what} {shown(function)} {kind}; allowed: a function that answers at once"
        )
