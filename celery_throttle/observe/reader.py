"""Plans that read the status of limits: all of them, or all about one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import floor, inf
from typing import NamedTuple

from celery_throttle.forecasts.reader import ForecastReader
from celery_throttle.limits.author import Author
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency, Rate
from celery_throttle.limits.requirement import parse_limits
from celery_throttle.observe.rules import RulesReader
from celery_throttle.observe.times import at_time, at_time_or_none
from celery_throttle.observe.totals import pair_counters, read_totals
from celery_throttle.observe.values import LimitStatus, Origin, Pause, Status, Stranded, Usage
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_LIMIT
from celery_throttle.store.script import Call, script

#: Names of the layers, by the byte that a definition begins with.
_LAYERS = {b"c": "code", b"r": "rules", b"s": "run time", b"u": "run time"}

#: How many limits one call reads.
_NAMES_OF_A_CALL = 50

#: Forecasts and ages look at this many lines at most.
MAX_LINES = 2000

#: Seconds for which a limit must have had room until its tasks count as runnable.
_RUNNABLE_AFTER_SECONDS = 0.5

#: How many limits and keys are asked for the number of runnable tasks, in each queue.
_MAX_RUNNABLE_REFS = 200

#: Seconds for which a queue counts as consumed after a worker has reported that. Workers do so
#: every ten seconds at least.
_CONSUMED_SECONDS = 60.0

_END = b"0"


class Fleet(NamedTuple):
    """Live workers, and the queues that they consume."""

    now: int  #: the server's time in microseconds
    workers: int
    quarantined: int  #: tasks
    consumed: dict[str, bool]  #: of queues with tasks that a worker has ever reported


class Waiting(NamedTuple):
    """The lines that wait at a limit."""

    oldest: float | None  #: seconds; None if nothing waits
    lines: int
    is_truncated: bool  #: whether there were too many lines to look at each
    queues: dict[str, int]  #: tasks that wait, by queue


@dataclass(frozen=True, slots=True)
class StatusReader(ForecastReader, RulesReader):
    """Reads the status of the limits of one prefix."""

    def of_all(self, after: str = "", most: int = 100) -> Plan[Status]:
        """Return the status of all limits, ``most`` at a time, with names behind ``after``."""
        fleet = yield from self.fleet()
        names = yield from self.limit_names()
        page = [name for name in names if name > after][:most]
        refs = [LimitRef(name, None) for name in page]
        found = yield from self.of_refs(refs)
        stranded = yield from self._stranded(fleet, found)
        limits = tuple(status for status, _ in found)
        has_more = bool(page) and page[-1] != names[-1]
        rules = yield from self.rules_status()
        return Status(
            at_time(fleet.now),
            limits,
            page[-1] if has_more else None,
            fleet.workers,
            stranded,
            rules,
        )

    def read_limits(self) -> Plan[list[LimitStatus]]:
        """Return the status of all limits, without what has to be measured or computed.

        That is ``usage``, ``runnable``, ``oldest`` and ``forecast``.
        """
        _, known = yield from self.list_names()
        names = sorted({*known, *self.limits} - {FAN_OUT_LIMIT})
        return (yield from self._read([LimitRef(name, None) for name in names]))

    def find_stranded(self) -> Plan[tuple[Stranded, ...]]:
        """Return the waiting tasks that no live worker can start."""
        fleet = yield from self.fleet()
        queues = [queue for queue, consumed in fleet.consumed.items() if not consumed]
        found = []
        for queue in sorted(queues):
            names = [*self.keys.queue(queue)]
            tasks = yield Call(script("count_tasks"), names)
            if tasks:
                found.append(Stranded(queue, tasks, "queue", queue))
        if fleet.quarantined:
            found.append(Stranded("", fleet.quarantined, "task", ""))
        return tuple(found)

    def estimate(self, status: LimitStatus) -> Plan[float | None]:
        """Return about how many seconds the tasks that wait at a limit need, by its rate alone.

        Unlike a forecast it does not look at lines. Tasks of keys wait as long as those of the key
        that has most. None if nothing waits, or if nobody knows.
        """
        tasks = status.waiting
        if not tasks or any(pause.until is None for pause in status.pauses):
            return None
        if status.waiting_keys:
            _, found = yield from self.list_keys(status.name, "waiting", most=1)
            tasks = max([1, *(int(waiting) for _, waiting in found)])
        rates = [limit.rate for limit in parse_limits(list(status.clauses), status.name)]
        seconds = [
            tasks * rate.period_us / rate.count / MICROSECONDS
            for rate in rates
            if isinstance(rate, Rate)
        ]
        paused = max([0.0, *(pause.seconds for pause in status.pauses)])
        return paused + max(seconds) if len(seconds) == len(rates) else None

    def list_keys(
        self, name: str, which: str, first: int = 0, most: int = 100
    ) -> Plan[tuple[int, list[tuple[str, float]]]]:
        """Return keys of a limit, some at a time, and how many there are.

        ``which``: ``"waiting"``, by how many tasks wait, the most first; ``"paused"``, by the end
        of the pause; ``"own"``: those with their own definition or weight.
        """
        keys = {
            "waiting": self.keys.key_backlogs(name),
            "paused": self.keys.paused_keys(name),
            "own": self.keys.own_keys(name),
        }[which]
        if which == "waiting" and first:
            first += 1  # the empty key has the sum, so it comes before all others
        count, *found = yield Call(script("list_keys"), [keys], [first, most + 1])
        pairs = [
            (key.decode(), float(score))
            for key, score in zip(found[::2], found[1::2], strict=True)
            if key
        ]
        return max(0, count - 1) if which == "waiting" else count, pairs[:most]

    def begin_once(self, what: str, seconds: float, *more: tuple[str, float]) -> Plan[bool]:
        """Return whether this caller is the first to do something in some seconds.

        ``more``: other things that must not have been done, each with its seconds.
        """
        whats = [(what, seconds), *more]
        names = [self.keys.once(one) for one, _ in whats]
        args = [self.now(), *(to_us(own) for _, own in whats)]
        began = yield Call(script("begin_once"), names, args)
        return bool(began)

    def fleet(self) -> Plan[Fleet]:
        """Return the live workers and the queues that they consume."""
        keys = self.keys
        names = [keys.membership, keys.consumed_queues, keys.temporary_queues, keys.quarantine]
        call = Call(script("read_fleet"), names, [self.now(), to_us(_CONSUMED_SECONDS)])
        now, workers, quarantined, queues = yield call
        head = keys.queue("").lines
        consumed: dict[str, bool] = {}
        for lines, flag in zip(queues[::2], queues[1::2], strict=True):
            name = lines.decode().removeprefix(head)
            # A worker that has just ended reported its queues a moment ago.
            consumed[name] = consumed.get(name, False) or (flag == b"1" and workers > 0)
        return Fleet(int(now), workers, quarantined, consumed)

    def of_refs(self, refs: Sequence[LimitRef]) -> Plan[list[tuple[LimitStatus, Waiting]]]:
        """Return the status of some limits and keys, and the lines that wait there."""
        found = yield from self._read_with_pauses(refs)
        waiting = {}
        for status, ref in zip(found, refs, strict=True):
            waiting[ref] = yield from self._measure(ref, status.waiting)
        defined = [ref for ref, one in zip(refs, found, strict=True) if one.defined]
        usage = yield from self._usage(defined)
        runnable = yield from self._runnable(set(chain(*(one.queues for one in waiting.values()))))
        with_lines = [ref for ref in refs if waiting[ref].lines]
        forecasts = (yield from self.of_limits(with_lines, MAX_LINES)) if with_lines else {}
        statuses = []
        for status, ref in zip(found, refs, strict=True):
            about = replace(
                status,
                usage=usage.get(ref, ()),
                runnable=sum(
                    tasks
                    for other, tasks in runnable.items()
                    if other == ref or (ref.key is None and other.name == ref.name)
                ),
                oldest=waiting[ref].oldest,
                forecast=forecasts.get(ref),
            )
            statuses.append((about, waiting[ref]))
        return statuses

    def _read_with_pauses(self, refs: Sequence[LimitRef]) -> Plan[list[LimitStatus]]:
        """:meth:`_read`, with the pause of the limit beside that of a key."""
        wholes = [
            LimitRef(name, None) for name in dict.fromkeys(ref.name for ref in refs if ref.key)
        ]
        found = yield from self._read([*refs, *wholes])
        pauses = {status.name: status.pauses for status in found[len(refs) :]}
        return [
            replace(status, pauses=(*pauses[status.name], *status.pauses)) if status.key else status
            for status in found[: len(refs)]
        ]

    def _read(self, refs: Sequence[LimitRef]) -> Plan[list[LimitStatus]]:
        """Read what is stored of limits and keys; without what has to be measured or computed."""
        keys, statuses = self.keys, []
        for start in range(0, len(refs), _NAMES_OF_A_CALL):
            batch = refs[start : start + _NAMES_OF_A_CALL]
            names, args = [keys.limits], [self.now()]
            for ref in batch:
                pauses = keys.pause(ref), keys.pause_origin(ref), keys.paused_keys(ref.name)
                names += (*pauses, keys.own_keys(ref.name), keys.backlog(ref))
                args += (ref.name, keys.field(ref))
            now, *rows = yield Call(script("read_status"), [*names, keys.totals()], args)
            statuses += [
                _read_row(ref, row, int(now), self.limits.get(ref.name, ()))
                for ref, row in zip(batch, rows, strict=True)
            ]
        return statuses

    def _measure(self, ref: LimitRef, waiting: int) -> Plan[Waiting]:
        """Measure the lines that wait at a limit, or at one key of it."""
        if not waiting:
            return Waiting(None, 0, is_truncated=False, queues={})
        keys, by_key = self.keys, ref.key is not None
        name = keys.waiting_lists(ref) if by_key else keys.waiting_list_index(ref.name)
        oldest_us, lines, is_truncated = 0, 0, False
        queues: dict[str, int] = {}
        cursor, head = b"" if by_key else b"0", keys.queue("").due
        while True:
            cursor, oldest, count, flag, found = yield Call(
                script("measure_waiting"), [name], [self.now(), cursor]
            )
            oldest_us, lines = max(oldest_us, oldest), lines + count
            for due, tasks in zip(found[::2], found[1::2], strict=True):
                queue = due.decode().removeprefix(head)
                queues[queue] = queues.get(queue, 0) + tasks
            is_truncated = bool(flag) or (lines >= MAX_LINES and cursor != _END)
            if cursor == _END or lines >= MAX_LINES:
                oldest_seconds = oldest_us / MICROSECONDS if lines else None
                return Waiting(oldest_seconds, lines, is_truncated, queues)

    def _usage(self, refs: Sequence[LimitRef]) -> Plan[dict[LimitRef, tuple[Usage, ...]]]:
        found: dict[LimitRef, tuple[Usage, ...]] = {}
        for start in range(0, len(refs), _NAMES_OF_A_CALL):
            limits = yield from self._limits(refs[start : start + _NAMES_OF_A_CALL])
            rows = yield from self._capacity_rows(list(limits))
            for ref, (_, *numbers) in zip(limits, rows, strict=True):
                found[ref] = tuple(
                    _read_usage(limit, *numbers[4 * n : 4 * n + 4])
                    for n, limit in enumerate(limits[ref])
                )
        return found

    def _runnable(self, queues: Iterable[str]) -> Plan[dict[LimitRef, int]]:
        """Return for limits and keys how many waiting tasks could start, and are not taken."""
        keys = self.keys
        found: dict[LimitRef, int] = {}
        after = to_us(_RUNNABLE_AFTER_SECONDS)
        for queue in queues:
            rows = yield Call(
                script("list_overdue"),
                [keys.queue(queue).due],
                [self.now(), after, _MAX_RUNNABLE_REFS],
            )
            for waiting_list, tasks in zip(rows[::2], rows[1::2], strict=True):
                ref = keys.waiting_list_ref(waiting_list.decode(), queue)
                found[ref] = found.get(ref, 0) + tasks
        usage = yield from self._usage(list(found))
        return {
            ref: min([tasks, *(max(0, floor(one.most - one.used)) for one in usage.get(ref, ()))])
            for ref, tasks in found.items()
        }

    def _stranded(
        self, fleet: Fleet, found: Sequence[tuple[LimitStatus, Waiting]]
    ) -> Plan[tuple[Stranded, ...]]:
        """Return the waiting tasks that no live worker can start."""
        yield from ()
        queues: dict[str, int] = {}
        stranded = []
        for status, waiting in found:
            for queue, tasks in waiting.queues.items():
                queues[queue] = queues.get(queue, 0) + tasks
            if not status.defined and status.waiting:
                stranded.append(Stranded("", status.waiting, "limit", status.name))
        for queue, tasks in sorted(queues.items()):
            if not fleet.consumed.get(queue, False):
                stranded.append(Stranded(queue, tasks, "queue", queue))
        if fleet.quarantined:
            stranded.append(Stranded("", fleet.quarantined, "task", ""))
        return tuple(stranded)


def _read_row(
    ref: LimitRef, row: Sequence[bytes], now: int, of_code: Sequence[Limit]
) -> LimitStatus:
    """Return the status of a row of ``read_status.lua``."""
    layer, since, text, ends, given, about, weight, paused, pause_origin = row[:9]
    paused_keys, own_keys, waiting, waiting_keys, totals = row[9:]
    origin = None
    if layer:
        author = Author.unpack(about.decode())
        origin = Origin(
            _LAYERS[layer],
            at_time(float(since)),
            at_time_or_none(given),
            author,
            at_time_or_none(ends),
        )
    clauses = text.decode().split("; ") if text else map(str, of_code)
    return LimitStatus(
        name=ref.name,
        key=ref.key,
        defined=bool(layer or of_code),
        clauses=tuple(clauses),
        origin=origin,
        weight=int(weight),
        usage=(),
        pauses=_read_pauses(ref, int(paused), pause_origin.decode(), now),
        paused_keys=int(paused_keys),
        own_keys=int(own_keys),
        waiting=int(waiting),
        waiting_keys=int(waiting_keys),
        runnable=0,
        oldest=None,
        forecast=None,
        totals=read_totals(pair_counters(totals)),  # type: ignore[arg-type]  # a list
    )


def _read_pauses(ref: LimitRef, paused_us: int, origin: str, now: int) -> tuple[Pause, ...]:
    if not paused_us:
        return ()
    seconds = pause_to_seconds(paused_us)
    until = None if seconds == inf else at_time(now + paused_us)
    since, _, about = origin.partition(" ")
    author = Author.unpack(about)
    return (Pause(*shown_ref(ref), seconds, until, at_time_or_none(float(since or 0)), author),)


def shown_ref(ref: LimitRef) -> tuple[str, str | None]:
    """Return name and key as values of the status have them."""
    return ("fan-out" if ref.name == FAN_OUT_LIMIT else ref.name), ref.key


def _read_usage(limit: Limit, amount: int, reset: int, _wait: int, share: int) -> Usage:
    left = amount / MILLION
    most = limit.rate.slots if isinstance(limit.rate, Concurrency) else limit.burst
    return Usage(str(limit), most - left, most, reset / MICROSECONDS, share / MILLION)
