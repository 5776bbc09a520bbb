"""Plans that pause, resume and reset limits.

Each is a function of what it uses; :class:`.server.Plans` has them as methods.
"""

from __future__ import annotations

from celery_throttle.limits.duration import ENDLESS_US, check_duration, pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.author import Author
from celery_throttle.operations.define import check_known, recheck_waiters
from celery_throttle.operations.plan import Plan, PlanContext
from celery_throttle.store.script import Call, script


def pause(
    context: PlanContext,
    ref: LimitRef,
    seconds: float | None,
    author: Author | None = None,
) -> Plan[float]:
    """Pause a limit or one key of it, until it is resumed if ``seconds`` is None.

    Returns the seconds for which it is paused now.
    """
    us = ENDLESS_US if seconds is None else to_us(check_duration(seconds, "a pause"))
    about = (author or Author.of()).pack()
    yield from check_known(context, ref)
    args = [context.now(), us, context.keys.field(ref), ref.key or "", about]
    paused: int = yield Call(script("pause"), context.keys.pause_change(ref), args)
    return pause_to_seconds(paused)


def resume(context: PlanContext, ref: LimitRef, author: Author | None = None) -> Plan[bool]:
    """Lift the pause of a limit or of one key of it; return whether there was one.

    Waiting lines are decided again even if there was none, so that another call completes one
    that was interrupted.
    """
    keys = context.keys
    args = [context.now(), keys.field(ref), ref.key or "", (author or Author.of()).pack()]
    yield from check_known(context, ref)
    whole = ref.key is None
    waits = keys.waiting_list_index(ref.name) if whole else keys.waiting_lists(ref)
    lifted, cursor = yield Call(script("resume"), [*keys.pause_change(ref), waits], args)
    yield from recheck_waiters(context, ref.name, cursor)
    return bool(lifted)


def reset(context: PlanContext, ref: LimitRef, author: Author | None = None) -> Plan[None]:
    """Clear the state of a limit or one key of it, and lift its pause."""
    keys, index = context.keys, context.keys.waiting_list_index(ref.name)
    args = [context.now(), keys.field(ref), ref.key or "", (author or Author.of()).pack()]
    yield from check_known(context, ref)
    names = [*keys.pause_change(ref), keys.state(ref), keys.entries(ref)]
    call = Call(script("reset"), [*names, keys.key_cap(ref.name), index], args)
    yield from recheck_waiters(context, ref.name, (yield call))
