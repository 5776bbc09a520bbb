"""Need: which limits and keys a task or a call needs, and how much of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from celery_throttle.costs import Cost, millionths
from celery_throttle.errors import LimitError, LimitValueError, shown
from celery_throttle.limits import Limit, check_name
from celery_throttle.scope import LimitRef

#: What users write for one name: a limit, or several that all have to allow.
Written = str | Limit | Sequence[str | Limit]

#: A cost for all limits, or by the name of the limit; 1 for those it does not name.
Costs = Cost | Mapping[str, Cost]

# Several limits of one name are limits of their own: "github", "github+2", "github+3". No name that
# users write has a "+".
_MARK = "+"


class Need(NamedTuple):
    """Limits and keys, and of each the cost in millionths of a unit."""

    refs: tuple[LimitRef, ...]
    costs: tuple[int, ...]


def read_limits(limits: Mapping[str, Written]) -> dict[str, Limit]:
    """Name to limit, checked; several limits of one name are told apart.

    Raises:
        LimitError: a name or a limit is wrong.
    """
    return {
        _part(check_name(name), number): Limit.of(one)
        for name, written in limits.items()
        for number, one in enumerate(several(written, name), 1)
    }


def several(written: Written, name: str) -> Sequence[str | Limit]:
    """What users write for one name, as a sequence.

    Raises:
        LimitValueError: it is empty.
    """
    if isinstance(written, (str, Limit)) or not isinstance(written, Sequence):
        return [written]
    if not written:
        raise LimitValueError(f"{shown(written)} is no limit for {name!r}; allowed: one or more")
    return written


def _part(name: str, number: int) -> str:
    return name if number == 1 else f"{name}{_MARK}{number}"


def written_name(name: str) -> str:
    """The name that users gave a limit."""
    return name.partition(_MARK)[0]


def parts(name: str, limits: Mapping[str, Limit]) -> list[str]:
    """The names of all limits that users mean by one name."""
    names, number = [name], 2
    while _part(name, number) in limits:
        names.append(_part(name, number))
        number += 1
    return names


def needed(
    refs: Sequence[LimitRef], cost: Costs, limits: Mapping[str, Limit], least: int = 1
) -> Need:
    """What a call needs of some limits.

    Args:
        refs: limits and keys, as users name them.
        cost: units, for all of them or by name.
        limits: those the code defines.
        least: 0 if a cost may be 0.

    Raises:
        CostError: a cost is no number that can be a cost.
        LimitError: a cost is given for a limit that is not named.
    """
    every = tuple(ref._replace(name=name) for ref in refs for name in parts(ref.name, limits))
    return Need(every, costs_of(every, cost, least))


def costs_of(refs: Sequence[LimitRef], cost: Costs, least: int = 1) -> tuple[int, ...]:
    """The cost of each limit in millionths. Raises as :func:`needed`."""
    if not isinstance(cost, Mapping):
        return (millionths(cost, allow_zero=least == 0),) * len(refs)
    names = [written_name(ref.name) for ref in refs]
    unknown = sorted(set(cost) - set(names), key=str)
    if unknown:
        raise LimitError(
            f"a cost is given for {shown(unknown[0])}, which is not named; "
            f"allowed: {', '.join(dict.fromkeys(names))}"
        )
    return tuple(millionths(cost.get(name, 1), allow_zero=least == 0) for name in names)
