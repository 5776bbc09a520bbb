"""Need: which names and keys of limits a task or a call needs, and how much of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from celery_throttle.errors import LimitError, LimitValueError, shown
from celery_throttle.limits.cost import Cost, in_units, millionths
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit, check_name

if TYPE_CHECKING:
    from celery_throttle.store.script import Call

#: What users write for one name: a limit, or several that all have to allow.
Written = str | Limit | Sequence[str | Limit]

#: Limits that one name may have.
MAX_LIMITS = 20

#: Limits and keys that one call, or one task, may name: a script deals with all of them at once,
#: and the server with nothing else meanwhile.
MAX_REFS = 1000

#: A cost for all limits, or by the name of the limit; 1 for those it does not name.
Costs = Cost | Mapping[str, Cost]


class Need:
    """Names and keys, and of each the cost in millionths of a unit.

    Immutable, and kept by those who need the same again and again: it remembers its hash, and the
    calls that were made for it.

    Attributes:
        refs, costs: one cost for each.
        units: the first cost, in units.
        calls: by what they are for; see :class:`celery_throttle.operations.plans.Plans`.
    """

    __slots__ = ("_hash", "calls", "costs", "refs", "units")

    def __init__(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...]) -> None:
        self.refs = refs
        self.costs = costs
        self.units = in_units(costs[0])
        self.calls: dict[tuple[str, str], Call] = {}
        self._hash = hash((refs, costs))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Need):
            return NotImplemented
        return (self.refs, self.costs) == (other.refs, other.costs)

    def __repr__(self) -> str:
        return f"Need(refs={self.refs!r}, costs={self.costs!r})"


def read_limits(limits: Mapping[str, Written]) -> dict[str, tuple[Limit, ...]]:
    """Name to limits, checked.

    Raises:
        LimitError: a name or a limit is wrong.
    """
    if not isinstance(limits, Mapping):
        raise LimitError(f"{shown(limits)} are no limits; allowed: a dict of name to limit")
    return {check_name(name): read(written, name) for name, written in limits.items()}


def read(written: Written, name: str) -> tuple[Limit, ...]:
    """The limits that users write for one name.

    Raises:
        LimitError: one is wrong, there are none, too many, or two numbers of slots.
    """
    several = isinstance(written, Sequence) and not isinstance(written, (str, bytes))
    try:
        limits = tuple(map(Limit.of, written if several else [written]))  # type: ignore[arg-type]  # Limit.of checks the type
    except LimitError as error:
        raise type(error)(f"limit {name!r}: {error}") from None
    if not 1 <= len(limits) <= MAX_LIMITS:
        raise LimitValueError(f"{name!r} has {len(limits)} limits; allowed: 1 to {MAX_LIMITS}")
    if sum(map(has_slots, limits)) > 1:
        raise LimitValueError(
            f"{shown(written)} for {name!r} says twice how many at once; allowed: once"
        )
    return limits


def has_slots(limit: Limit) -> bool:
    """Whether a limit is a number of slots."""
    return limit.algorithm == CONCURRENCY


def slot_places(names: Iterable[str], known: Mapping[str, Sequence[Limit]]) -> tuple[int, ...]:
    """The places of the names that are known to have slots."""
    return tuple(
        place for place, name in enumerate(names) if any(map(has_slots, known.get(name, ())))
    )


def needed(refs: Sequence[LimitRef], cost: Costs, least: int = 1) -> Need:
    """What a call needs.

    Args:
        refs: names and keys.
        cost: units, for all of them or by name.
        least: 0 if a cost may be 0.

    Raises:
        CostError: a cost is no number that can be a cost.
        LimitError: a cost is given for a limit that is not named, or too many are named.
    """
    check_count(refs)
    return Need(tuple(refs), costs_of(refs, cost, least))


def check_count(named: Sequence[object]) -> None:
    """Raise LimitValueError if more limits and keys are named than one call deals with."""
    if len(named) > MAX_REFS:
        raise LimitValueError(
            f"{len(named)} limits and keys are named at once; allowed: at most {MAX_REFS}"
        )


def costs_of(refs: Sequence[LimitRef], cost: Costs, least: int = 1) -> tuple[int, ...]:
    """The cost of each limit in millionths. Raises as :func:`needed`."""
    if not isinstance(cost, Mapping):
        return (millionths(cost, allow_zero=least == 0),) * len(refs)
    names = [ref.name for ref in refs]
    unknown = sorted(set(cost) - set(names), key=str)
    if unknown:
        raise LimitError(
            f"a cost is given for {shown(unknown[0])}, which is not named; "
            f"allowed: {', '.join(dict.fromkeys(names))}"
        )
    return tuple(millionths(cost.get(name, 1), allow_zero=least == 0) for name in names)


def too_many_keys(name: str, max_keys: int) -> LimitValueError:
    """The error for a call that names more keys of a limit than may ever be in use."""
    return LimitValueError(
        f"there is never room for all keys of limit {name!r} that are named at once; "
        f"allowed: at most {max_keys} (max-keys)"
    )
