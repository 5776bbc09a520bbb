"""Plans that pause, resume and reset limits.

Each is a function of what it uses; :class:`.server.Plans` has them as methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from celery_throttle.limits.duration import ENDLESS_US, check_duration, pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
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


class _Names(Protocol):
    """The names of limits, on a server or in memory."""

    @property
    def limits(self) -> Mapping[str, Limits]: ...

    def list_names(self) -> Plan[tuple[int, list[str]]]: ...


class _Pauses(_Names, Protocol):
    """Pauses of limits, on a server or in memory."""

    def pause(
        self,
        ref: LimitRef,
        seconds: float | None,
        author: Author | None = None,
    ) -> Plan[float]: ...

    def resume(self, ref: LimitRef, author: Author | None = None) -> Plan[bool]: ...


def limit_names(plans: _Names) -> Plan[list[str]]:
    """Return the names of all limits that users have defined, sorted."""
    _, names = yield from plans.list_names()
    return sorted({*names, *plans.limits})


def pause_all(plans: _Pauses, seconds: float | None, author: Author) -> Plan[list[str]]:
    """Pause every limit; return their names."""
    names = yield from limit_names(plans)
    for name in names:
        yield from plans.pause(LimitRef(name, None), seconds, author)
    return names


def resume_all(plans: _Pauses, author: Author) -> Plan[list[str]]:
    """Lift the pauses of all limits, not those of keys; return the names of paused limits."""
    lifted = {}
    for name in (yield from limit_names(plans)):
        lifted[name] = yield from plans.resume(LimitRef(name, None), author)
    return [name for name in lifted if lifted[name]]
