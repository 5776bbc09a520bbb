"""The cost of a task as written: a number, an argument, its length, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_throttle.errors import CostError, LimitError, LimitFunctionError, nearest, shown
from celery_throttle.limits.cost import ArgumentCost, Cost, to_millionths
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import CallFunction
from celery_throttle.tasks.functions import TaskFunction

#: A cost; or the argument that has it (``"{tokens}"``), or whose length it is (``"len({items})"``);
#: or a function of the arguments that returns it.
OneCost = Cost | str | CallFunction

#: A cost for all limits, or by limit name.
CostSpec = OneCost | Mapping[str, OneCost]

#: The cost for one limit, once it was read; a number is in millionths of a unit.
ReadCost = int | ArgumentCost | TaskFunction


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The cost of a task for each of its limits. Made by :meth:`read`."""

    others: ReadCost  #: for limits that have none of their own
    by_name: Mapping[str, ReadCost]

    @classmethod
    def read(
        cls,
        spec: CostSpec,
        names: Sequence[str],
        known: Mapping[str, Limits],
        make_function: Callable[[Any], TaskFunction],
        *,
        or_others: bool = False,
    ) -> TaskCosts:
        """Read what is written for the limits of these names, or for other known limits as well.

        Raises:
            LimitError: a cost is wrong, or is for another limit.
        """

        def read_one(written: Any, limits: Iterable[str]) -> ReadCost:
            argument = ArgumentCost.parse(written)
            if argument is not None:
                return argument
            if callable(written):
                return make_function(written)
            for name in limits:
                for limit in known[name]:
                    limit.check_cost(written, name)
            return to_millionths(written)

        if not isinstance(spec, Mapping):
            return cls(read_one(spec, names), {})
        unknown = sorted(set(spec) - set(names) - set(known if or_others else ()), key=str)
        if unknown:
            raise LimitError(
                f"throttle_cost names {shown(unknown[0])}, which is no limit of the task"
            )
        return cls(to_millionths(1), {name: read_one(cost, [name]) for name, cost in spec.items()})

    def __getitem__(self, name: str) -> ReadCost:
        """Return the cost for a limit."""
        return self.by_name.get(name, self.others)

    def all(self) -> tuple[ReadCost, ...]:
        """Return all costs."""
        return (self.others, *self.by_name.values())


def read_result(result: Any, name: str, function: TaskFunction, known: Mapping[str, Limits]) -> int:
    """Return the cost for a limit that a function has returned, a number or a dict by limit name.

    Raises:
        LimitFunctionError: it is neither, or the dict has the name of no ``known`` limit.
    """
    if isinstance(result, Mapping):
        for unknown in (each for each in result if each not in known):
            raise LimitFunctionError(
                f"{function.text} returned {shown(result)}: a cost is given for {shown(unknown)}, "
                f"which is no limit; {nearest(str(unknown), known)}"
            )
        result = result.get(name, 1)
    try:
        return to_millionths(result)
    except CostError:
        raise LimitFunctionError(
            f"{function.text} returned {shown(result)} as the cost for {name!r}; allowed: a number "
            "of units above 0, or a dict of these by limit name"
        ) from None
