"""Plans that read all about one limit, and what was recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import MICROSECONDS, is_endless, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.fleet import Fleet
from celery_throttle.observe.periods import RECENT_SECONDS, Record, divide, read_record
from celery_throttle.observe.preview import PreviewReader
from celery_throttle.observe.reader import MAX_LINES, Waiting
from celery_throttle.observe.report import Report, make_report
from celery_throttle.observe.times import at_time
from celery_throttle.observe.totals import pair_counters
from celery_throttle.observe.values import (
    Change,
    LimitDetails,
    Period,
    QueueStatus,
    SlotHolder,
)
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: The longest time that records cover, in seconds.
MAX_RECORDED_SECONDS = 7 * 86_400

#: Seconds between two recent records, and between two of a week.
RECORD_SECONDS, _WEEK_RECORD_SECONDS = 10.0, 600.0

#: The least seconds between two recent records: a worker that is a bit early does not skip one.
MIN_RECORD_SECONDS = RECORD_SECONDS * 0.9

#: The periods of the details of a limit, and of a report at most.
_PERIODS, _MAX_PERIODS = 30, 96

_TOP_KEYS, _MAX_SLOTS, _MAX_FAN_OUTS = 10, 100, 100

_END = b"0"


class DetailsReader(PreviewReader):
    """Reads all about one limit, or one key of it."""

    __slots__ = ()

    def record_totals(self) -> Plan[None]:
        """Record the totals of all limits, unless somebody did so in the last ten seconds."""
        keys, cursor = self.keys, b"0"
        names = [keys.names, keys.recorded, keys.backlog(LimitRef("", None)), keys.totals()]
        while True:
            args = [self.now(), cursor, to_us(MIN_RECORD_SECONDS)]
            cursor = yield Call(script("record_totals"), names, args)
            if cursor == _END:
                return

    def of_one(self, ref: LimitRef) -> Plan[LimitDetails]:
        """Return all about a limit, or one key of it. Raises as :meth:`check_known`."""
        yield from self.check_known(ref)
        fleet = yield from self.fleet()
        ((status, waiting),) = yield from self.of_refs([ref], fleet)
        used, holders = 0, tuple[SlotHolder, ...]()
        limits = yield from self._limits([ref])
        if any(map(has_slots, limits.get(ref, ()))):
            used, holders = yield from self._slots(ref)
        return LimitDetails(
            status=status,
            recent=(yield from self.periods(ref.name, RECENT_SECONDS, _PERIODS)),
            queues=_read_queues(waiting, fleet),
            top_keys=(yield from self._top_keys(ref)),
            paused_keys=(yield from self._paused_keys(ref, fleet.now)),
            slots_used=used,
            slots=holders,
            fan_outs=(yield from self._fan_outs(ref, waiting)),
        )

    def periods(self, name: str, seconds: float, parts: int) -> Plan[tuple[Period, ...]]:
        """Return what was counted at a limit in the last seconds, in equal parts.

        Raises:
            LimitValueError: it is more than a week, or less than a second.
        """
        _check_recorded(seconds)
        older: list[Record] = []
        if seconds > RECENT_SECONDS:
            _, _, older = yield from self._read_records(name, "week", seconds)
        # The recent records are closer together, so they also show what the others miss.
        last, recorded, known = yield from self._read_records(
            name, "recent", min(seconds, RECENT_SECONDS)
        )
        if known and known[-1].at < recorded:
            known.append(known[-1]._replace(at=recorded))  # until then nothing had changed
        known = sorted({one.at: one for one in [*older, *known]}.values())
        if not known and last.counters:  # recorded by nobody yet: all is of the last period
            known = [Record(last.at - to_us(RECORD_SECONDS), last.waiting, {})]
        return divide([*known, last], last.at - to_us(seconds), parts)

    def _read_records(
        self, name: str, which: str, seconds: float
    ) -> Plan[tuple[Record, int, list[Record]]]:
        """Return how it is now, when the last records were made, and the records of a time."""
        keys = self.keys
        names = [keys.records(name, which), keys.recorded]
        names += [keys.backlog(LimitRef("", None)), keys.totals()]
        args = [self.now(), name, to_us(seconds)]
        now, recorded, waiting, totals, found = yield Call(script("read_records"), names, args)
        last = Record(int(now), waiting, pair_counters(totals))
        return last, int(recorded), [*map(read_record, found)]

    def report(self, name: str, seconds: float) -> Plan[Report]:
        """Return what was counted of a limit in the last seconds, with advice.

        Raises as :meth:`check_known` and :meth:`periods`.
        """
        ref = LimitRef(name, None)
        _check_recorded(seconds)
        yield from self.check_known(ref)
        (status,) = yield from self._read([ref])
        step = RECORD_SECONDS if seconds <= RECENT_SECONDS else _WEEK_RECORD_SECONDS
        parts = min(_MAX_PERIODS, max(1, int(seconds / step)))
        return make_report(status, (yield from self.periods(name, seconds, parts)))

    def changes(self, most: int = 100, before: str | None = None) -> Plan[list[Change]]:
        """Return changes of limits, the newest first; ``before``: id of the one to begin behind."""
        first = "+" if before is None else f"({before}"
        rows = yield Call(script("list_changes"), [self.keys.changes], [first, most])
        return [_read_change(change_id.decode(), fields) for change_id, fields in rows]

    def _top_keys(self, ref: LimitRef) -> Plan[tuple[tuple[str, int], ...]]:
        if ref.key is not None:
            return ()
        _, found = yield from self.list_keys(ref.name, "waiting", most=_TOP_KEYS)
        return tuple((key, int(tasks)) for key, tasks in found)

    def _paused_keys(
        self, ref: LimitRef, now: int
    ) -> Plan[tuple[tuple[str, datetime | None], ...]]:
        if ref.key is not None:
            return ()
        _, found = yield from self.list_keys(ref.name, "paused", most=_TOP_KEYS)
        return tuple(
            (key, None if is_endless(int(end) - now) else at_time(int(end)))
            for key, end in found
            if end > now
        )

    def _slots(self, ref: LimitRef) -> Plan[tuple[int, tuple[SlotHolder, ...]]]:
        names = [self.keys.entries(ref), self.keys.claims("")]
        used, *rows = yield Call(script("list_slots"), names, [self.now(), _MAX_SLOTS])
        return used, tuple(_read_holder(*row) for row in rows)

    def _fan_outs(self, ref: LimitRef, waiting: Waiting) -> Plan[tuple[str, ...]]:
        if waiting.is_truncated:
            return ()
        found: dict[str, None] = {}
        for queue in waiting.queues:
            for line in (yield from self._lines(queue, MAX_LINES)):
                if line.fan_out and any(
                    one == ref or (ref.key is None and one.name == ref.name) for one in line.costs
                ):
                    found[self.keys.fan_out_name(line.fan_out)] = None
        return tuple(sorted(found))[:_MAX_FAN_OUTS]


def _check_recorded(seconds: float) -> None:
    if not 1 <= seconds <= MAX_RECORDED_SECONDS:
        raise LimitValueError(
            f"a time of {shown(seconds)} seconds is not recorded; allowed: from one second to "
            "seven days"
        )


def _read_queues(waiting: Waiting, fleet: Fleet) -> tuple[QueueStatus, ...]:
    by_tasks = sorted(waiting.queues.items(), key=lambda item: (-item[1].tasks, item[0]))
    return tuple(
        QueueStatus(name, queue.tasks, fleet.consumes(name, queue.oldest))
        for name, queue in by_tasks
    )


def _read_holder(holder: bytes, lease_us: int, claimed: bytes) -> SlotHolder:
    """Return the holder of a slot. A task's is its worker, a token, and perhaps its id."""
    worker, _, token = holder.decode().partition(" ")
    _, _, own_id = token.partition(" ")
    return SlotHolder(worker, claimed.decode() or own_id or None, lease_us / MICROSECONDS)


def _read_change(change_id: str, fields: Sequence[bytes]) -> Change:
    texts = [field.decode() for field in fields]
    about = dict(zip(texts[::2], texts[1::2], strict=True))
    return Change(
        id=change_id,
        at=at_time(int(about["at"])),
        action=about["action"],
        limit=about["limit"],
        old=about["old"],
        new=about["new"],
        author=Author.unpack(about["about"]),
        until=at_time(int(about["until"])) if "until" in about else None,
    )
