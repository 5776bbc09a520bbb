"""The plans of all operations that a limiter executes, on a server or in memory."""

from __future__ import annotations

from celery_throttle.limits.key import LimitRef
from celery_throttle.operations import acquire, rules
from celery_throttle.operations import define as definitions
from celery_throttle.operations.author import Author
from celery_throttle.operations.memory import MemoryPlans
from celery_throttle.operations.plan import Plan


class Plans(acquire.AcquirePlans):
    """The plans of all operations on the limits of one prefix.

    Each is a function of what it uses. Workers use more of these functions.
    """

    __slots__ = ()

    register = definitions.register
    check_known = definitions.check_known
    define = definitions.define
    undefine = definitions.undefine
    list_names = definitions.list_names
    pause = definitions.pause
    resume = definitions.resume
    reset = definitions.reset

    apply_rules = rules.apply_rules

    settle = acquire.settle
    learn = acquire.learn
    release = acquire.release
    renew = acquire.renew


#: The plans of a limiter.
AnyPlans = Plans | MemoryPlans


def pause_all(plans: AnyPlans, seconds: float | None, author: Author) -> Plan[list[str]]:
    """Pause every limit; return their names."""
    names = yield from _all_names(plans)
    for name in names:
        yield from plans.pause(LimitRef(name, None), seconds, author)
    return names


def resume_all(plans: AnyPlans, author: Author) -> Plan[list[str]]:
    """Lift the pauses of all limits, not those of keys; return the names of paused limits."""
    lifted = {}
    for name in (yield from _all_names(plans)):
        lifted[name] = yield from plans.resume(LimitRef(name, None), author)
    return [name for name in lifted if lifted[name]]


def _all_names(plans: AnyPlans) -> Plan[list[str]]:
    _, names = yield from plans.list_names()
    return sorted({*names, *plans.limits})
