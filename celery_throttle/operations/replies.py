"""Replies of the scripts that decide, and the errors that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from celery_throttle.errors import CostError, LimitValueError, UnknownLimitError, nearest, shown
from celery_throttle.limits.cost import to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement, too_many_keys_error

#: Index of the microseconds for which the limit is paused, in refusals except those of the fast
#: path.
_PAUSED = 7


class ReplyStatus(IntEnum):
    """The first element of a reply of ``acquire.lua`` and ``admit.lua``."""

    ALLOWED = 1
    REFUSED = 0
    NEVER = -1
    UNKNOWN = -2
    SLOTS = -3
    KEYS = -4


class RefusalKind(IntEnum):
    """The kind of a refusal in a reply of ``acquire.lua``."""

    OTHER = 0
    NEEDS_SLOT = 1
    TOO_LONG = 2


def read_allowed(reply: Sequence[int], granted: float) -> Decision:
    """Return the decision of a reply that allows a request."""
    # By position, as every allowed request passes here.
    return Decision(
        True,  # noqa: FBT003  # see above
        reply[3],
        reply[1],
        0.0,
        reply[2] / MICROSECONDS,
        None,
        granted,
        reply[4] / MICROSECONDS,
    )


def read_refused(requirement: Requirement, reply: Sequence[int]) -> tuple[LimitRef, Decision]:
    """Return the limit that refuses a request, and the decision."""
    refusing = requirement.refs[reply[2] - 1]
    decision = Decision(
        False,  # noqa: FBT003  # see above
        reply[5],
        reply[3],
        reply[1] / MICROSECONDS,
        reply[4] / MICROSECONDS,
        refusing.name,
    )
    if len(reply) > _PAUSED and reply[_PAUSED]:
        decision = decision.with_pause(pause_to_seconds(reply[_PAUSED]))
    return refusing, decision


def check_reply(
    reply: Sequence[int], requirements: Sequence[Requirement], known: Iterable[str]
) -> None:
    """Raise the error of a reply, if it is one; ``known`` are names of limits, for the message.

    Raises:
        CostError: the cost can never pass.
        UnknownLimitError: neither the server nor the code knows a limit.
        LimitValueError: a limit has slots, or the call names more keys of it than its max-keys.
    """
    if reply[0] >= ReplyStatus.REFUSED:
        return
    refs = [ref for requirement in requirements for ref in requirement.refs]
    costs = [cost for requirement in requirements for cost in requirement.costs]
    ref, cost = refs[reply[1] - 1], costs[reply[1] - 1]
    if reply[0] == ReplyStatus.UNKNOWN:
        raise unknown_limit_error(ref.name, known)
    if reply[0] == ReplyStatus.SLOTS:
        raise slot_needed_error(ref.name)
    if reply[0] == ReplyStatus.KEYS:
        raise too_many_keys_error(ref.name, reply[2])
    raise cost_too_high_error(cost, ref, reply[2])


def slot_needed_error(name: str) -> LimitValueError:
    """Return the error for a limit with slots where only units can be taken."""
    return LimitValueError(
        f"limit {name!r} has slots, which must be released: use 'with limiter[{name!r}].slot():'"
    )


def cost_too_high_error(cost: int, ref: LimitRef, burst: int) -> CostError:
    """Return the error for a cost, in millionths of a unit, that can never pass."""
    return CostError(
        f"cost {shown(to_units(cost))} can never pass limit {ref.name!r}: "
        f"its burst is {burst}, and a cost must be at most that"
    )


def unknown_limit_error(name: str, known: Iterable[str]) -> UnknownLimitError:
    """Return the error for a name that is not defined; ``known`` are the names that are."""
    advice = nearest(name, known, "this process knows")
    return UnknownLimitError(f"limit {shown(name)} is not defined; {advice}")
