"""Plans that read waiting tasks and the capacity of limits, and return forecasts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.forecasts.capacity import Capacity, LimitsState, LimitState
from celery_throttle.forecasts.solver import (
    Forecast,
    LineFilter,
    WaitingLine,
    belongs_to_fan_out,
    competing_lines,
    needs_limit,
    solve,
)
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations import define
from celery_throttle.operations.memory import MemoryPlans
from celery_throttle.operations.plan import Plan, PlanContext, has_keys, ref_arguments
from celery_throttle.operations.waiting_queues import END, waiting_queues
from celery_throttle.store import definitions
from celery_throttle.store.keys import FAN_OUT_NAME
from celery_throttle.store.script import Call, script

K = TypeVar("K")
T = TypeVar("T")

_unpack = lru_cache(maxsize=1024)(definitions.unpack)

#: Limits and keys of one call.
_MAX_REFS = 50


class ForecastReader(PlanContext):
    """Makes forecasts for the limits of one prefix."""

    __slots__ = ()

    check_known = define.check_known
    list_names = define.list_names

    def of_limit(self, ref: LimitRef, measured: float | None = None) -> Plan[Forecast]:
        """Return the forecast of a limit: one key of it, or without a key all of them."""
        if measured is not None and not (isinstance(measured, (int, float)) and measured > 0):
            raise LimitValueError(
                f"measured is {shown(measured)}; allowed: tasks a second, above 0, or None"
            )
        yield from self.check_known(ref)
        return (yield from self.of_lines(needs_limit(ref), measured))

    def of_fan_out(self, key: str, measured: float | None = None) -> Plan[Forecast]:
        """Return the forecast of a fan-out, by the key of its record."""
        return (yield from self.of_lines(belongs_to_fan_out(key), measured))

    def of_lines(self, matches: LineFilter, measured: float | None = None) -> Plan[Forecast]:
        """Return the forecast of some lines."""
        now, lines = yield from self._all_lines()
        lines = competing_lines(lines or (), matches)
        capacities = yield from self._capacities({ref for line in lines for ref in line.costs}, now)
        return solve(with_known_limits(lines, capacities), matches, capacities, now, measured)

    def of_limits(
        self, refs: Sequence[LimitRef], max_lines: int, queues: Sequence[str] | None = None
    ) -> Plan[Mapping[LimitRef, Forecast]]:
        """Return the forecasts of some limits, read at once; none if more lines wait than that.

        ``queues``: those with waiting tasks, if they are known.
        """
        return (yield from self.of_each({ref: needs_limit(ref) for ref in refs}, max_lines, queues))

    def of_each(
        self,
        filters: Mapping[K, LineFilter],
        max_lines: int,
        queues: Sequence[str] | None = None,
        measured: Mapping[K, float | None] | None = None,
    ) -> Plan[Mapping[K, Forecast]]:
        """Return a forecast for the lines of each filter; none if more lines wait than that.

        ``queues``: as for :meth:`of_limits`; ``measured``: as for :meth:`of_limit`.
        """
        now, lines = yield from self._all_lines(max_lines, queues)
        if lines is None:
            return {}
        capacities = yield from self._capacities({ref for line in lines for ref in line.costs}, now)
        known, forecasts = with_known_limits(lines, capacities), {}
        for one, matches in filters.items():
            competing = competing_lines(known, matches)
            used = {ref: capacities[ref] for line in competing for ref in line.costs}
            rate = None if measured is None else measured[one]
            forecasts[one] = solve(competing, matches, used, now, rate)
        return forecasts

    def of_task(
        self, line: bytes, position: int, max_lines: int, queues: Iterable[str]
    ) -> Plan[float | None]:
        """Return the seconds until the task at a position of a line starts.

        None if that is not known, or if more lines wait than ``max_lines`` in these queues.
        """
        now, _ = yield from self.list_names()
        lines: dict[bytes, WaitingLine] = {}
        for queue in queues:
            lines.update((yield from self._lines_by_name(queue, max_lines - len(lines))))
            if len(lines) > max_lines:
                return None
        if line not in lines:
            return None
        own = lines[line] = lines[line]._replace(ranks=_first_tasks(lines[line].ranks, position))
        competing = competing_lines(lines.values(), lambda one: one is own)
        refs = {ref for one in competing for ref in one.costs}
        capacities = yield from self._capacities(refs, now)
        known = with_known_limits(competing, capacities)
        index = next(n for n, one in enumerate(competing) if one is own)
        return solve(known, lambda one: one is known[index], capacities, now).seconds

    def _all_lines(
        self, max_lines: int = sys.maxsize, queues: Sequence[str] | None = None
    ) -> Plan[tuple[int, list[WaitingLine] | None]]:
        """Return the server's time in microseconds, and all lines; None if there are too many."""
        now, names = yield from self.list_names()
        lines: list[WaitingLine] = []
        if queues is None:
            queues, are_all = yield from waiting_queues(self.keys, names, max_lines)
            if not are_all:
                return now, None
        for queue in queues:
            lines += yield from self._lines(queue, max_lines - len(lines))
            if len(lines) > max_lines:
                return now, None
        return now, lines

    def _lines(self, queue: str, most: int = sys.maxsize) -> Plan[Collection[WaitingLine]]:
        """Return the lines of a queue; if there are more than ``most``, not all of them."""
        return (yield from self._lines_by_name(queue, most)).values()

    def _lines_by_name(self, queue: str, most: int) -> Plan[dict[bytes, WaitingLine]]:
        """Return :meth:`_lines` by their keys. A scan may return one twice."""
        lines: dict[bytes, WaitingLine] = {}
        names = list(self.keys.queue(queue))
        cursor = b""
        while cursor != END and len(lines) <= most:
            call = Call(script("read_lines"), names, [self.now(), cursor or "0"])
            cursor, late, *rows = yield call
            for line, fan_out, weight, requirements, ranks in rows:
                costs = {
                    _ref(name.decode(), field.decode()): float(cost)
                    for name, field, cost in _tuples(requirements, 3)
                }
                by_rank = list(_tuples(ranks, 2))
                lines[line] = WaitingLine(fan_out.decode(), costs, by_rank, queue, late, weight)
        return lines

    def _capacities(
        self, refs: Iterable[LimitRef], now: int
    ) -> Plan[dict[LimitRef, list[Capacity | None]]]:
        """Return capacities; limits that nobody has defined are omitted, as they stop no task."""
        states = yield from self._states(refs)
        return {ref: states[ref].capacities(ref.name, now) for ref in states}

    def _states(self, refs: Iterable[LimitRef]) -> Plan[dict[LimitRef, LimitsState]]:
        """Return the limits in force with their states, for those that are defined."""
        found: dict[LimitRef, LimitsState] = {}
        rest = iter(refs)
        while batch := list(islice(rest, _MAX_REFS)):
            limits = yield from self._limits(batch)
            rows = yield from self._capacity_rows(list(limits))
            for ref, (paused, *numbers) in zip(limits, rows, strict=True):
                states = [LimitState(*four) for four in _tuples(numbers, 4)]
                found[ref] = LimitsState(limits[ref], paused, states)
        return found

    def _limits(self, refs: Sequence[LimitRef]) -> Plan[dict[LimitRef, Sequence[Limit]]]:
        """Return the limits in force, for those that are defined; a fan-out has none."""
        fan_outs: dict[LimitRef, Sequence[Limit]] = {
            ref: () for ref in refs if ref.name == FAN_OUT_NAME
        }
        refs = [ref for ref in refs if ref not in fan_outs]
        fields = [field for ref in refs for field in (self.keys.field(ref), ref.name)]
        packed = yield from define.read_definitions(self, fields)
        if not all(packed[1::2]):
            yield from define.register_missing(self, refs)
            packed = yield from define.read_definitions(self, fields)
        rows = zip(refs, packed[::2], packed[1::2], strict=True)
        known = {
            ref: _unpack(of_key or of_name) for ref, of_key, of_name in rows if of_key or of_name
        }
        return {**known, **fan_outs}

    def _capacity_rows(self, refs: Sequence[LimitRef]) -> Plan[Sequence[Sequence[int]]]:
        if not refs:
            return []
        names, about = ref_arguments(self.keys, Requirement(tuple(refs), (MILLION,) * len(refs)))
        args = [self.now(), int(has_keys(refs)), *about]
        call = Call(script("capacity"), [self.keys.limits, *names], args)
        rows: list[Sequence[int]]
        _, *rows = yield from define.call_registered(
            self, call, refs
        )  # its calendar windows may run out
        return rows


@dataclass(frozen=True, slots=True)
class EmptyForecasts(ForecastReader):
    """Forecasts without a server: no task waits."""

    plans: MemoryPlans = field(kw_only=True)  #: know the limits

    def check_known(self, ref: LimitRef) -> Plan[None]:
        """See :meth:`MemoryPlans.check_known`."""
        return self.plans.check_known(ref)

    def of_lines(self, matches: LineFilter, measured: float | None = None) -> Plan[Forecast]:
        """Return the forecast of no lines."""
        yield from ()
        return solve((), matches, {}, self.local_time(), measured)


def _first_tasks(ranks: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return the ranks of the first tasks of a line."""
    first = []
    for rank, tasks in ranks:
        first.append((rank, min(tasks, count)))
        count -= tasks
        if count <= 0:
            break
    return first


def with_known_limits(
    lines: Iterable[WaitingLine], known: Container[LimitRef]
) -> list[WaitingLine]:
    """Return the lines without limits that nobody has defined."""
    return [
        line._replace(costs={ref: line.costs[ref] for ref in line.costs if ref in known})
        for line in lines
    ]


def _ref(name: str, field: str) -> LimitRef:
    return LimitRef(name, None if field == name else field[len(name) + 1 :])


def _tuples(flat: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return zip(*[iter(flat)] * size, strict=True)
