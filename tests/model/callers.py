"""Callers outside tasks, who compete with them; and who changes limits."""

from __future__ import annotations

from typing import NamedTuple

from celery_throttle.limits.cost import to_millionths
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import LimitsLike, parse_limits
from celery_throttle.operations.acquire import Acquisition, Holder
from tests.model import tables
from tests.model.bounds import Admission
from tests.model.tasks import Kind
from tests.model.watched import Server
from tests.model.world import LEASE
from tests.protocol import SECOND


class Taken(NamedTuple):
    """What was reserved, or slots that are held."""

    refs: list[LimitRef]
    reserved: Acquisition
    admitted: list[Admission]
    cost: float
    holder: str


def take(server: Server, ask: tables.Ask, name: str) -> Taken | None:
    """Ask once, under a name for who holds slots. None: it was refused."""
    limiter, world = server.protocol.limiter, server.world
    requirement, holder = server.protocol.require(ask.limits, ask.cost), None
    if ask.mode == "upto":
        decision = limiter.acquire_up_to(requirement.refs, ask.cost)
        reserved = Acquisition(requirement, decision, ())
    else:
        if world.never_fits(Kind(ask.limits, ask.cost)):
            return None
        holder = Holder(name, LEASE / SECOND) if ask.mode == "slot" else None
        plan = limiter.plans.try_acquire(requirement, None, mode=ask.mode, holder=holder)
        reserved = limiter.run_plan(plan)
        decision = reserved.decision
    if not decision:
        server.check_refusal(counted=True)
        return None
    world.check_room(requirement.refs)
    refs, held = list(requirement.refs), name if holder else ""
    delay = round(decision.delay * SECOND)
    admitted = world.admit(refs, decision.granted, 0, held, delay)
    return Taken(refs, reserved, admitted, ask.cost, held)


def settle(server: Server, taken: Taken, worth: float) -> None:
    """It was worth such a share of what was reserved; or slots are given back."""
    limiter, world = server.protocol.limiter, server.world
    if taken.holder:
        limiter.run_plan(limiter.plans.release(taken.refs, taken.holder))
        world.release(taken.refs, taken.holder)
    else:
        actual = taken.cost * worth
        limiter.run_plan(limiter.plans.settle(taken.reserved, actual))
        world.histories.refund(taken.admitted, to_millionths(actual, allow_zero=True))
        for ref in taken.refs if worth > 1 else ():
            world.histories.admit(ref, 0, world.passed)  # what is owed is in use, whatever it is


def define(server: Server, ref: LimitRef, written: LimitsLike | None) -> None:
    """Define the limits of a name or a key, or take that back."""
    limiter = server.protocol.limiter
    server.advance(1)  # no two scripts run at the same time
    plans = limiter.plans
    limiter.run_plan(plans.undefine(ref) if written is None else plans.define(ref, written))
    if written is None and ref.key is None:
        written = tables.LIMITS[ref.name]
    server.world.define(ref, None if written is None else parse_limits(written, ref.name))
