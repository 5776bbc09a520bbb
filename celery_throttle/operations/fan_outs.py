"""Plans that pause and resume fan-outs, and the call that records how their tasks end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from celery_throttle.errors import UnknownFanOutError, shown
from celery_throttle.limits.duration import ENDLESS_US, Duration, check_duration, to_us
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys, fan_out_ref
from celery_throttle.store.script import Argument, Call, script

DONE, FAILED, REVOKED = "done", "failed", "revoked"

#: Seconds over which ends of tasks are counted for the rate, at least.
RATE_SAMPLE_SECONDS = 5.0

#: Seconds after the last end of a task until the rate is unknown.
RATE_STALE_SECONDS = 10.0


def pause_fan_out(keys: Keys, name: str, lasts: Duration | None, author: Author) -> Plan[None]:
    """Pause a fan-out, until it is resumed if ``lasts`` is None.

    Raises:
        LimitValueError: ``lasts`` is negative, or no duration.
        UnknownFanOutError: there is no record of it, or the record has expired.
    """
    us = ENDLESS_US if lasts is None else to_us(check_duration(lasts, "a pause"))
    ref = fan_out_ref(name)
    names = [*keys.pause_change(ref), keys.fan_out(name)]
    args: list[Argument] = ["", us, keys.field(ref), "", author.pack()]
    paused: int = yield Call(script("pause"), names, args)
    if paused < 0:
        raise unknown_fan_out_error(name)


def resume_fan_out(keys: Keys, name: str, author: Author) -> Plan[None]:
    """Lift the pause of a fan-out, if there is one; its lines are decided again in any case."""
    ref = fan_out_ref(name)
    names = [*keys.pause_change(ref), keys.waiting_lists(ref)]
    yield Call(script("resume"), names, ["", keys.field(ref), ref.key or "", author.pack()])


def outcomes_call(record: str, outcomes: Iterable[tuple[str, str]]) -> Call:
    """Return the call that records ids and outcomes of tasks of one fan-out."""
    args: list[Argument] = ["", to_us(RATE_SAMPLE_SECONDS), to_us(RATE_STALE_SECONDS)]
    return Call(script("record_outcomes"), [record], [*args, *chain.from_iterable(outcomes)])


def unknown_fan_out_error(name: str) -> UnknownFanOutError:
    """Return the error about a name that no fan-out has."""
    return UnknownFanOutError(f"there is no fan-out {shown(name)}, or its record has expired")
