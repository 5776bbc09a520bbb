"""How the tasks of a fan-out end, and the call that records it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from celery_throttle.limits.duration import to_us
from celery_throttle.observe.status.fan_outs import RATE_SAMPLE_SECONDS, RATE_STALE_SECONDS
from celery_throttle.store.script import Argument, Call, script

DONE, FAILED, REVOKED = "done", "failed", "revoked"


def outcomes_call(record: str, outcomes: Iterable[tuple[str, str]]) -> Call:
    """Return the call that records ids and outcomes of tasks of one fan-out."""
    about: list[Argument] = ["", to_us(RATE_SAMPLE_SECONDS), to_us(RATE_STALE_SECONDS)]
    return Call(script("record_outcomes"), [record], [*about, *chain.from_iterable(outcomes)])
