"""Requirements: the limits and keys that a task or a call needs, and the cost of each.

Also the parsing of what users write for limits and costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from celery_throttle.errors import (
    LimitError,
    LimitValueError,
    ThrottleError,
    function_name,
    raised_error,
    result_error,
    shown,
)
from celery_throttle.limits.cost import Cost, to_millionths, to_units
from celery_throttle.limits.duration import Duration, check_duration
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef, check_name, format_key
from celery_throttle.limits.limit import UNLIMITED, Limit, Limits
from celery_throttle.limits.rate import check_whole


@dataclass(frozen=True)
class LimitByKey:
    """A limit whose keys get their definitions from a function, such as a query.

    Attributes:
        default: The definition for keys for which the function returns None, and for use without a
            key: a text, a :class:`Limit`, or a list of these.
        function: Called with the parts of the key as texts, as commands show them: ``"42"`` for
            the key 42. It returns a definition like ``default``, or None. Workers call it in a
            thread when a task first needs the key, and then every ``refresh``. So do calls outside
            of tasks and in their bodies, by the caller itself; for asyncio, in a thread.
        refresh: Seconds, or a text such as ``"5m"``, between two calls for a key; default 60.

    Raises:
        LimitError: An argument is wrong.

    Example:
        >>> plans = {"gold": "1000/m", "free": "10/m"}
        >>> users = {"ada": "gold"}
        >>> LimitByKey("10/m", lambda user: plans.get(users.get(user))).refresh_seconds
        60.0
    """

    default: Any
    function: Callable[..., Any]
    refresh: Duration = 60

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise LimitValueError(f"function is {shown(self.function)}: it must be callable")
        if self.refresh_seconds < 1:
            raise LimitValueError(f"refresh is {shown(self.refresh)}: it must be 1 s or more")

    @property
    def refresh_seconds(self) -> float:
        """The seconds between two calls for a key.

        :meta private:
        """
        return check_duration(self.refresh, "refresh")

    def look_up(self, ref: LimitRef) -> Limits | None:
        """Return the limits of a key; None for the default.

        Raises:
            LimitFunctionError: the function raised, or returned no limit.

        :meta private:
        """
        key = format_key(ref.key or "")
        function = function_name(self.function)
        where = f"limit {ref.name!r}: the function {function!r}, called for key {shown(key)},"
        try:
            found = self.function(*key.split(":"))
        except Exception as error:
            raise raised_error(where, error) from error
        try:
            return None if found is None else parse_limits(found, ref.name)
        except ThrottleError as error:
            allowed = "a limit such as '10/m', a list of limits, or None for the default"
            raise result_error(where, found, error, allowed) from None


#: The limits of one name as users write them: one, or several that all have to allow.
LimitsLike = str | Limit | Sequence[str | Limit]

#: The limits of one name in the code: those of all keys, or by a function.
CodeLimits = LimitsLike | LimitByKey

MAX_LIMITS_PER_NAME = 20

#: The greatest weight: the number of dispatches of a line for one of a line of weight 1.
MAX_WEIGHT = 100

#: The limits and keys of one call. A script handles all of them in one go, and the server does
#: nothing else meanwhile.
MAX_REFS_PER_CALL = 1000

#: The limits that a task declares. To park or claim a task costs more than a call: a line has ten
#: keys for each limit. Limits that its body requests, and that of a fan-out, come on top; a line
#: stores the index of the limit at which it waits in one byte.
MAX_LIMITS_PER_TASK = 100

#: A cost for all limits, or a mapping of limit name to cost; the default for a name is 1.
Costs = Cost | Mapping[str, Cost]


class _AnyFunction(Protocol):
    """Any function. Strict pyright would prefer ``Callable[..., Any]`` to all others in a union."""

    @property
    def __call__(self) -> Callable[..., Any]:
        """The function."""


class _KeywordFunction(Protocol):
    """A function of any keyword arguments."""

    def __call__(self, **kwargs: Any) -> Any:
        """Return a key or a cost."""


#: A function of the arguments of a call, which returns a key or a cost. It may be any function; the
#: other types tell strict pyright the parameters of a lambda.
CallFunction = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | _KeywordFunction
    | _AnyFunction
)


class _Requirement(NamedTuple):
    refs: tuple[LimitRef, ...]
    costs: tuple[int, ...]


class Requirement(_Requirement):
    """Limits and keys, and the cost of each in millionths of a unit.

    :meta private:
    """

    @cached_property
    def units(self) -> int | float:
        """The first cost, in units."""
        return to_units(self.costs[0])

    @cached_property
    def calls(self) -> dict[tuple[str, float | None, str], Any]:
        """The calls that were built for it, by mode, longest delay and prefix.

        Callers cache requirements that recur.
        """
        return {}


def parse_definitions(limits: Mapping[str, CodeLimits]) -> dict[str, Limits]:
    """Parse a mapping of name to limits; LimitError if a name or a limit is wrong."""
    if not isinstance(limits, Mapping):
        raise LimitError(f"limits are {shown(limits)}; allowed: a dict of name to limit")
    return {
        check_name(name): parse_limits(
            written.default if isinstance(written, LimitByKey) else written, name
        )
        for name, written in limits.items()
    }


def parse_limits(written: LimitsLike, name: str) -> Limits:
    """Parse the limits of one name: 1 to 20, at most one of them with slots; else LimitError.

    The result has those that are enforced; shadow limits are beside the first of them.
    """
    several = isinstance(written, Sequence) and not isinstance(written, (str, bytes))
    try:
        limits = tuple(map(Limit.of, written if several else [written]))  # type: ignore[arg-type]  # Limit.of checks the type
    except LimitError as error:
        raise type(error)(f"limit {name!r}: {error}") from None
    if not 1 <= len(limits) <= MAX_LIMITS_PER_NAME:
        raise LimitValueError(
            f"{name!r} has {len(limits)} limits; allowed: 1 to {MAX_LIMITS_PER_NAME}"
        )
    if sum(map(has_slots, limits)) > 1:
        raise LimitValueError(
            f"{shown(written)} for {name!r} has two numbers of slots; allowed: one"
        )
    return attach_shadows(limits)


def attach_shadows(limits: Limits) -> Limits:
    """Return the limits that are enforced, with the shadow limits beside the first of them."""
    shadows = tuple(limit for limit in limits if limit.shadow)
    if not shadows:
        return limits
    first, *others = [limit for limit in limits if not limit.shadow] or [UNLIMITED]
    return replace(first, shadows=first.shadows + shadows), *others


def has_slots(limit: Limit) -> bool:
    """Whether a limit is a number of slots."""
    return limit.algorithm == CONCURRENCY


def check_same_kind(name: str, limits: Limits, known: Limits) -> None:
    """Raise LimitValueError if only one of two definitions of a limit has slots."""
    if any(map(has_slots, limits)) != any(map(has_slots, known)):
        raise slots_error(name, limits)


def slots_error(name: str, limits: Limits | None) -> LimitValueError:
    """Return the error for limits that would switch between a rate and slots."""
    texts = format_limits(limits or ())
    written = shown(texts[0] if len(texts) == 1 else texts)
    allowed = "without" if any(map(has_slots, limits or ())) else "with"
    return LimitValueError(
        f"limit {name!r} cannot become {written}: it cannot switch between a rate and slots at run "
        f"time; allowed: limits {allowed} slots"
    )


def check_weight(field: str, weight: int) -> None:
    """Raise LimitValueError unless a weight is in its bounds; ``field``: of what, for messages."""
    check_whole(f"{field!r}: weight", weight, MAX_WEIGHT)


def find_slot_indexes(names: Iterable[str], known: Mapping[str, Limits]) -> tuple[int, ...]:
    """Return the indexes of the names that have slots, as far as they are ``known``."""
    return tuple(
        index for index, name in enumerate(names) if any(map(has_slots, known.get(name, ())))
    )


def make_requirement(refs: Sequence[LimitRef], cost: Costs, least: int = 1) -> Requirement:
    """Return the requirement of a call; ``least``: 0 if a cost may be 0.

    Raises:
        CostError: a cost is not a number, or too small.
        LimitError: a cost is given for a limit that is not named, or too many are named.
    """
    check_ref_count(refs)
    return Requirement(tuple(refs), parse_costs(refs, cost, least))


def check_ref_count(refs: Sequence[object], most: int = MAX_REFS_PER_CALL) -> None:
    """Raise LimitValueError if there are more limits and keys than one call or task may name."""
    if len(refs) > most:
        raise LimitValueError(
            f"{len(refs)} limits and keys are named at once; allowed: at most {most}"
        )


def parse_costs(refs: Sequence[LimitRef], cost: Costs, least: int = 1) -> tuple[int, ...]:
    """Return the cost of each limit in millionths. Raises as :func:`make_requirement`."""
    if not isinstance(cost, Mapping):
        return (to_millionths(cost, allow_zero=least == 0),) * len(refs)
    names = [ref.name for ref in refs]
    unknown = sorted(set(cost) - set(names), key=str)
    if unknown:
        raise LimitError(
            f"a cost is given for {shown(unknown[0])}, which is not named; "
            f"allowed: {', '.join(dict.fromkeys(names))}"
        )
    return tuple(to_millionths(cost.get(name, 1), allow_zero=least == 0) for name in names)


def too_many_keys_error(name: str, max_keys: int) -> LimitValueError:
    """Return the error for a call that names more keys of a limit than may ever be in use."""
    return LimitValueError(
        f"one call names more keys of limit {name!r} than can ever be in use; "
        f"allowed: at most {max_keys} (max-keys)"
    )


def format_limits(limits: Iterable[Limit]) -> list[str]:
    """Return the texts of the limits of a name, shadow limits included."""
    texts = []
    for limit in limits:
        if not limit.shadows or replace(limit, shadows=()) != UNLIMITED:
            texts.append(str(limit))
        texts += map(str, limit.shadows)
    return texts


def find_strictest(values: Iterable[int | None]) -> int | None:
    """Return the least ``max_keys``, or ``max_waiting``, of several limits; None if none has it."""
    return min((value for value in values if value is not None), default=None)
