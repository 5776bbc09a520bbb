"""How far a fan-out is, as its record says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_throttle.limits.duration import MICROSECONDS

#: Seconds over which it is seen how fast tasks end; and after the last end until that says nothing.
SEEN, STALE = 5.0, 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fan-out is.

    Attributes:
        name: of the fan-out.
        sent: tasks that were put into lines.
        waiting: of these, tasks that still wait there.
        running: tasks that have left their lines and not ended: they run, or are to be retried, or
            their worker was killed after it had acknowledged them.
        done, failed: tasks that have ended.
        revoked: tasks that were cancelled, revoked, or have expired.
        rate: tasks a second that ended of late (in five to ten seconds, in which it may have been
            paused); None if too little is known.
        paused: seconds for which it is paused, 0 if it is not; infinity for no known end.
        closed: whether all tasks that were given have been sent.
        cancelled: whether it was.
    """

    name: str
    sent: int
    waiting: int
    running: int
    done: int
    failed: int
    revoked: int
    rate: float | None
    paused: float
    closed: bool
    cancelled: bool

    @property
    def ended(self) -> int:
        """Tasks that have ended, in whatever way."""
        return self.done + self.failed + self.revoked

    @property
    def complete(self) -> bool:
        """Whether all tasks were sent, if it was not cancelled, and all have ended."""
        return (self.closed or self.cancelled) and self.ended >= self.sent

    @classmethod
    def read(cls, name: str, now: int, paused: float, facts: Mapping[str, str]) -> Progress:
        """The record of a fan-out at a time in microseconds; see ``fan_out.lua``."""
        sent, waiting, done, failed, revoked = (
            max(0, int(facts.get(count, 0)))
            for count in ("sent", "waiting", "done", "failed", "revoked")
        )
        return cls(
            name=name,
            sent=sent,
            waiting=waiting,
            running=max(0, sent - waiting - done - failed - revoked),
            done=done,
            failed=failed,
            revoked=revoked,
            rate=_rate(now, done + failed + revoked, facts),
            paused=paused,
            closed="closed" in facts,
            cancelled="cancelled" in facts,
        )


def _rate(now: int, ended: int, facts: Mapping[str, str]) -> float | None:
    if "cancelled" in facts:
        return None  # what was cancelled did not run
    if now - int(facts["new_at"]) > STALE * MICROSECONDS:
        return None
    seconds = (now - int(facts["old_at"])) / MICROSECONDS
    tasks = ended - int(facts["old_ended"])
    return tasks / seconds if tasks > 0 and seconds >= 1 else None
