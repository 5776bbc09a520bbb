"""The progress of a fan-out, as its record states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_throttle.limits.duration import MICROSECONDS

#: Seconds over which ends of tasks are counted for the rate, at least.
RATE_SAMPLE_SECONDS = 5.0

#: Seconds after the last end of a task until the rate is unknown.
RATE_STALE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a fan-out. ``sent`` is the sum of all tasks that wait, run or have ended.

    Attributes:
        name: The name of the fan-out.
        sent: The tasks that were put into lines.
        waiting: The tasks that wait in lines.
        running: The tasks that have left their lines and have not ended. They run, will be retried,
            or were lost with a worker that had acknowledged them.
        done: The tasks that have ended with success.
        failed: The tasks that have ended with an error.
        revoked: The tasks that were cancelled, were revoked, or have expired.
        rate: The tasks per second that ended in the last 5 to 10 seconds, pauses included. None
            before the first task ends, from 10 seconds after the last end, and after a cancel.
        paused: The seconds for which the fan-out is paused: 0.0 if it is not paused, infinity if it
            is paused until resumed.
        closed: Whether all tasks have been sent.
        cancelled: Whether the fan-out was cancelled.
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
        """The number of tasks that have ended, the sum of ``done``, ``failed`` and ``revoked``."""
        return self.done + self.failed + self.revoked

    @property
    def complete(self) -> bool:
        """Whether the fan-out is closed or cancelled, and all tasks that were sent have ended."""
        return (self.closed or self.cancelled) and self.ended >= self.sent

    @classmethod
    def read(cls, name: str, now: int, paused: float, record: Mapping[str, str]) -> Progress:
        """Read the record of a fan-out (see ``fan_out.lua``) at a time in microseconds.

        :meta private:
        """
        sent, waiting, done, failed, revoked = (
            max(0, int(record.get(count, 0)))
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
            rate=_rate(now, done + failed + revoked, record),
            paused=paused,
            closed="closed" in record,
            cancelled="cancelled" in record,
        )


def _rate(now: int, ended: int, record: Mapping[str, str]) -> float | None:
    if "cancelled" in record:
        return None  # cancelled tasks count as ended
    if now - int(record["new_at"]) > RATE_STALE_SECONDS * MICROSECONDS:
        return None
    seconds = (now - int(record["old_at"])) / MICROSECONDS
    tasks = ended - int(record["old_ended"])
    return tasks / seconds if tasks > 0 and seconds >= 1 else None
