"""Plans after an acquisition: settle a reservation, apply feedback, release and renew slots."""

from __future__ import annotations

from collections.abc import Sequence

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import pause_to_seconds, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Costs, Requirement, parse_costs
from celery_throttle.operations.acquire import Acquisition
from celery_throttle.operations.author import API, Author
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import MAX_COST, Plan, PlanContext, has_keys, ref_arguments
from celery_throttle.operations.replies import check_reply
from celery_throttle.store.script import Argument, Call, script


def settle(context: PlanContext, acquisition: Acquisition, actual: Costs) -> Plan[None]:
    """Settle a reservation, made with mode ``reserve``, with its actual cost in units."""
    requirement = acquisition.requirement
    refs, keys = requirement.refs, context.keys
    names, args = ref_arguments(context.keys, requirement)
    waits = [keys.waiting_lists(ref) for ref in refs]
    names = [keys.limits, *names, *waits, keys.totals()]
    worth = [min(amount, MAX_COST) for amount in parse_costs(refs, actual, least=0)]
    about = [context.now(), int(has_keys(refs)), *args, *worth, *acquisition.marks]
    call = Call(script("settle"), names, about)
    check_reply((yield from call_registered(context, call, refs)), [requirement], context.limits)


def learn(context: PlanContext, requirement: Requirement, feedback: Feedback) -> Plan[float]:
    """Apply feedback to limits; return the seconds for which it stops them.

    That is infinity if one of them is paused until it is resumed.
    """
    names, about = ref_arguments(context.keys, requirement)
    stop = -1 if feedback.stop is None else to_us(feedback.stop)
    left = [feedback.left_of(ref.name) for ref in requirement.refs]
    lefts = [-1 if one is None else min(one, MAX_UNITS) * MILLION for one in left]
    answer: list[Argument] = [int(feedback.refused), stop, to_us(feedback.took)]
    answer.append(_author_of(feedback).pack())
    args = [context.now(), int(has_keys(requirement.refs)), *about, *lefts, *answer]
    keys = context.keys
    for ref in requirement.refs:
        names += (keys.pause_origin(ref), keys.paused_keys(ref.name))
    call = Call(script("learn"), [keys.limits, *names, keys.totals()], args)
    reply = yield from call_registered(context, call, requirement.refs)
    check_reply(reply, [requirement], context.limits)
    return pause_to_seconds(reply[1])


def release(context: PlanContext, refs: Sequence[LimitRef], holder: str) -> Plan[None]:
    """Release the slots of a holder."""
    keys = context.keys
    names = [name for ref in refs for name in (keys.entries(ref), keys.waiting_lists(ref))]
    yield Call(script("release"), names, [context.now(), holder])


def renew(context: PlanContext, slots: Sequence[tuple[LimitRef, str]], lease: float) -> Plan[None]:
    """Renew the leases of slots, each a limit and a holder, for ``lease`` seconds from now."""
    yield renew_call(context, [(context.keys.entries(ref), holder) for ref, holder in slots], lease)


def renew_call(
    context: PlanContext, slots: Sequence[tuple[str, str]], lease: float, *, anew: bool = False
) -> Call:
    """Return the call of :meth:`renew`, for slots by the keys of their entries.

    ``anew``: also adds slots that the server does not know.
    """
    holders = [holder for _, holder in slots]
    args = [context.now(), to_us(lease), int(anew), *holders]
    entries = [entries for entries, _ in slots]
    keys = context.keys
    names = [*entries, *map(keys.key_cap_of, entries), *map(keys.state_of, entries)]
    return Call(script("renew"), names, args)


def _author_of(feedback: Feedback) -> Author:
    what = "it refused a request" if feedback.refused else "its answer"
    asked = "" if feedback.stop is None else f", and asked to stop for {feedback.stop:g} s"
    return Author(API, what + asked)
