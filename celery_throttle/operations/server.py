"""The plans of all operations that a limiter executes on a server."""

from __future__ import annotations

from celery_throttle.operations import acquire, pauses, rules
from celery_throttle.operations import define as definitions


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

    pause = pauses.pause
    resume = pauses.resume
    reset = pauses.reset
    limit_names = pauses.limit_names
    pause_all = pauses.pause_all
    resume_all = pauses.resume_all

    apply_rules = rules.apply_rules

    settle = acquire.settle
    learn = acquire.learn
    release = acquire.release
    renew = acquire.renew
