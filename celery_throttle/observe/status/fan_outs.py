"""The progress of fan-outs as their records state it, and the plans that read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds
from celery_throttle.observe.forecasts.reader import forecast_each
from celery_throttle.observe.forecasts.solver import Forecast, belongs_to_fan_out
from celery_throttle.observe.observer import Observer, merge_fields, pair_up
from celery_throttle.operations.fan_outs import RATE_STALE_SECONDS, unknown_fan_out_error
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import fan_out_ref

#: The fields of a progress that are numbers of tasks. No record has that of running tasks.
COUNTS = ("sent", "waiting", "running", "done", "failed", "revoked")

#: Records that one call reads.
_PAGE_SIZE = 50


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
            is paused until it is resumed.
        closed: Whether all tasks have been sent.
        cancelled: Whether the fan-out was cancelled.
        unreachable: The names of the shards that have a part of the fan-out and cannot be reached.
            The counts are those of the other parts. Empty without shards.
        missing: The names of the shards whose part has expired, or was lost with the data of its
            server. The counts are those of the other parts. Empty without shards.
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
    unreachable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        """The number of tasks that have ended, the sum of ``done``, ``failed`` and ``revoked``."""
        return self.done + self.failed + self.revoked

    @property
    def complete(self) -> bool:
        """Whether the fan-out is closed or cancelled, and all tasks that were sent have ended.

        False while a part of it cannot be reached.
        """
        ended = self.ended >= self.sent and not self.unreachable
        return (self.closed or self.cancelled) and ended


def merge_progress(
    parts: Sequence[Progress], unreachable: Sequence[str] = (), missing: Sequence[str] = ()
) -> Progress:
    """Return the progress of a fan-out with parts in several shards.

    It is paused as long as all parts are, and cancelled if one is: another call of ``cancel``
    cancels the others.
    """
    rates = [part.rate for part in parts if part.rate is not None]
    sums = dict.fromkeys(COUNTS, sum)
    merged = merge_fields(parts, **sums, paused=min, closed=all, cancelled=any)
    return replace(
        merged,
        rate=sum(rates) if rates and not merged.cancelled else None,
        closed=merged.closed and not unreachable,
        unreachable=tuple(unreachable),
        missing=tuple(missing),
    )


def _read_progress(now: int, pause_us: int, record: Mapping[str, str]) -> Progress:
    """Read the record of a fan-out (see ``fan_outs.lua``) at a time in microseconds."""
    counts: dict[str, Any] = {one: max(0, int(record.get(one, 0))) for one in COUNTS}
    ended = counts["done"] + counts["failed"] + counts["revoked"]
    counts["running"] = max(0, counts["sent"] - counts["waiting"] - ended)
    return Progress(
        name=record["name"],
        **counts,
        rate=_rate(now, ended, record),
        paused=pause_to_seconds(pause_us),
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


def read_fan_outs(observer: Observer) -> Plan[list[Progress]]:
    """Return the progress of each fan-out that has a record, the most waiting tasks first."""
    found: dict[str, Progress] = {}
    names = [observer.keys.fan_outs]
    first, total = 0, 1
    while first < total:
        now, total, *rows = yield observer.call("list_fan_outs", names, first, _PAGE_SIZE)
        for paused, flat in rows:
            progress = _read_progress(int(now), int(paused), pair_up(flat))
            found[progress.name] = progress
        first += _PAGE_SIZE
    return sorted(found.values(), key=lambda progress: (-progress.waiting, progress.name))


def read_fan_out(observer: Observer, name: str) -> Plan[tuple[Progress, Mapping[str, str]]]:
    """Return the progress of a fan-out in the shard, and its record.

    Raises:
        UnknownFanOutError: there is no record, or it has expired.
    """
    names = [observer.keys.fan_out(name), observer.keys.pause(fan_out_ref(name))]
    now, paused, flat = yield observer.call("fan_out_progress", names)
    if not flat:
        raise unknown_fan_out_error(name)
    record = pair_up(flat)
    return _read_progress(int(now), int(paused), record), record


def forecast_fan_outs(
    observer: Observer, fan_outs: Sequence[Progress], max_lines: int
) -> Plan[Mapping[str, Forecast]]:
    """Return the forecasts of fan-outs by name; so many lines are looked at."""
    waiting = [progress for progress in fan_outs if progress.waiting]
    if not waiting:
        return {}
    filters = {one.name: belongs_to_fan_out(observer.keys.fan_out(one.name)) for one in waiting}
    rates = {one.name: one.rate for one in waiting}
    return (yield from forecast_each(observer, filters, max_lines, measured=rates))
