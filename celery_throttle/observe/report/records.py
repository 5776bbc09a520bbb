"""Plans that record the totals of limits, and read what was counted in a time."""

from __future__ import annotations

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.report.periods import RECENT_SECONDS, Record, divide, read_record
from celery_throttle.observe.totals import pair_counters
from celery_throttle.observe.values import Period
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: The longest time that records cover, in seconds.
MAX_RECORDED_SECONDS = 7 * 86_400

#: Seconds between two recent records, and between two of a week.
RECORD_SECONDS, WEEK_RECORD_SECONDS = 10.0, 600.0

#: The least seconds between two recent records: a worker that is a bit early does not skip one.
MIN_RECORD_SECONDS = RECORD_SECONDS * 0.9

_END = b"0"


def record_totals(observer: Observer) -> Plan[None]:
    """Record the totals of all limits, unless somebody did so in the last ten seconds."""
    keys, cursor = observer.keys, b"0"
    names = [keys.names, keys.recorded, keys.backlog(LimitRef("", None)), keys.totals()]
    while True:
        args = [observer.now(), cursor, to_us(MIN_RECORD_SECONDS)]
        cursor = yield Call(script("record_totals"), names, args)
        if cursor == _END:
            return


def read_periods(
    observer: Observer, name: str, seconds: float, parts: int
) -> Plan[tuple[Period, ...]]:
    """Return what was counted at a limit in the last seconds, in equal parts.

    Raises:
        LimitValueError: it is more than a week, or less than a second.
    """
    check_recorded(seconds)
    older: list[Record] = []
    if seconds > RECENT_SECONDS:
        _, _, older = yield from _read_records(observer, name, "week", seconds)
    # The recent records are closer together, so they also show what the others miss.
    last, recorded, known = yield from _read_records(
        observer, name, "recent", min(seconds, RECENT_SECONDS)
    )
    if known and known[-1].at < recorded:
        known.append(known[-1]._replace(at=recorded))  # until then nothing had changed
    known = sorted({one.at: one for one in [*older, *known]}.values())
    if not known and last.counters:  # recorded by nobody yet: all is of the last period
        known = [Record(last.at - to_us(RECORD_SECONDS), last.waiting, {})]
    return divide([*known, last], last.at - to_us(seconds), parts)


def _read_records(
    observer: Observer, name: str, which: str, seconds: float
) -> Plan[tuple[Record, int, list[Record]]]:
    """Return how it is now, when the last records were made, and the records of a time."""
    keys = observer.keys
    names = [keys.records(name, which), keys.recorded]
    names += [keys.backlog(LimitRef("", None)), keys.totals()]
    args = [observer.now(), name, to_us(seconds)]
    now, recorded, waiting, totals, found = yield Call(script("read_records"), names, args)
    last = Record(int(now), waiting, pair_counters(totals))
    return last, int(recorded), [*map(read_record, found)]


def check_recorded(seconds: float) -> None:
    """Raise LimitValueError if no record covers a time."""
    if not 1 <= seconds <= MAX_RECORDED_SECONDS:
        raise LimitValueError(
            f"a time of {shown(seconds)} seconds is not recorded; allowed: from one second to "
            "seven days"
        )
