"""What waits and what limits could give, read from the server for a forecast. Plans, see `plans`.

Queues are found by the limits: whatever waits, waits at one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.forecasts.capacity import Stock, Supply, supply_of
from celery_throttle.forecasts.solver import (
    Forecast,
    Waiting,
    Wanted,
    entangled,
    foresee,
    needing,
    of_fan_out,
)
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.define import DefinePlans
from celery_throttle.operations.plan import Plan
from celery_throttle.store import definitions
from celery_throttle.store.script import Argument, Call, script

T = TypeVar("T")

_END = b"0"

#: Limits and keys in one call.
_AT_ONCE = 200

#: How ``capacity.lua`` begins a reply about a limit that it cannot read.
_UNKNOWN = -2


class Outlook(DefinePlans):
    """Forecasts of the limits of one prefix."""

    __slots__ = ()

    def of_limit(self, ref: LimitRef, measured: float | None = None) -> Plan[Forecast]:
        """Of what needs a limit: one key of it, or without a key all of them.

        Raises:
            UnknownLimitError: nobody has defined a limit of that name.
            LimitValueError: what was measured is no number above 0.
        """
        if measured is not None and not (isinstance(measured, (int, float)) and measured > 0):
            raise LimitValueError(
                f"measured is {shown(measured)}; allowed: tasks a second, above 0, or None"
            )
        yield from self.check_known(ref)
        return (yield from self.of(needing(ref), measured))

    def of_fan_out(self, key: str, measured: float | None = None) -> Plan[Forecast]:
        """Of the tasks of a fan-out, by the key of its record."""
        return (yield from self.of(of_fan_out(key), measured))

    def of(self, wanted: Wanted, measured: float | None = None) -> Plan[Forecast]:
        """Of some lines.

        Args:
            wanted: tells which.
            measured: see :func:`celery_throttle.forecasts.solver.foresee`.
        """
        now, names = yield from self._names()
        lines: list[Waiting] = []
        for queue in (yield from self._queues(names)):
            lines += yield from self._lines(queue)
        lines = entangled(lines, wanted)
        supplies = yield from self._supplies({ref for line in lines for ref in line.costs}, now)
        known = [line._replace(costs=_known(line.costs, supplies)) for line in lines]
        return foresee(known, wanted, supplies, now, measured)

    def _names(self) -> Plan[tuple[int, list[str]]]:
        """The server's time, and the names of all limits."""
        names: dict[str, None] = {}
        now, cursor = 0, b""
        while cursor != _END:
            call = Call(script("list_limits"), [self.keys.limits], [self.now(), cursor or "0"])
            told, cursor, fields = yield call
            now = now or int(told)
            texts = (field.decode() for field in fields)
            names.update((text.partition(":")[0], None) for text in texts if " " not in text)
        return now, list(names)

    def _queues(self, names: Iterable[str]) -> Plan[list[str]]:
        """The queues of which tasks wait."""
        queues: dict[str, None] = {}
        head = self.keys.queue("").due
        for name in names:
            cursor = b""
            while cursor != _END:
                call = Call(
                    script("list_queues"), [self.keys.waiting_list_index(name)], [cursor or "0"]
                )
                cursor, found = yield call
                queues.update((due.decode().removeprefix(head), None) for due in found)
        return list(queues)

    def _lines(self, queue: str) -> Plan[Iterable[Waiting]]:
        """The lines of a queue. One may be read twice, as lines come and go meanwhile."""
        lines: dict[bytes, Waiting] = {}
        names = list(self.keys.queue(queue))
        cursor = b""
        while cursor != _END:
            call = Call(script("read_lines"), names, [self.now(), cursor or "0"])
            cursor, late, *rows = yield call
            for line, fan_out, weight, needs, ranks in rows:
                costs = {
                    _ref(name.decode(), field.decode()): float(cost)
                    for name, field, cost in _in_turn(needs, 3)
                }
                by_rank = list(_in_turn(ranks, 2))
                lines[line] = Waiting(fan_out.decode(), costs, by_rank, queue, late, weight)
        return lines.values()

    def _supplies(
        self, refs: Iterable[LimitRef], now: int
    ) -> Plan[dict[LimitRef, list[Supply | None]]]:
        """What limits give; those that nobody has defined are left out, as they hold up no task."""
        found: dict[LimitRef, list[Supply | None]] = {}
        rest = iter(refs)
        while some := list(islice(rest, _AT_ONCE)):
            limits = yield from self._limits(some)
            for ref, row in zip(limits, (yield from self._stocks(list(limits), now)), strict=True):
                paused, *numbers = row
                stocks = [Stock(*four) for four in _in_turn(numbers, 4)]
                found[ref] = [
                    supply_of(ref.name, limit, stock, paused, now)
                    for limit, stock in zip(limits[ref], stocks, strict=True)
                ]
        return found

    def _limits(self, refs: Sequence[LimitRef]) -> Plan[dict[LimitRef, Sequence[Limit]]]:
        """The limits in force of those that are defined."""
        fields = [field for ref in refs for field in (self.keys.field(ref), ref.name)]
        call = Call(script("read_definitions"), [self.keys.limits], fields)
        packed: Sequence[bytes | None] = yield call
        if not all(packed[1::2]):
            yield from self.register_missing(refs)
            packed = yield call
        both = zip(refs, packed[::2], packed[1::2], strict=True)
        return {ref: _unpacked(own or whole) for ref, own, whole in both if own or whole}

    def _stocks(self, refs: Sequence[LimitRef], now: int) -> Plan[Sequence[Sequence[int]]]:
        if not refs:
            return []
        keys = self.keys
        names = [keys.limits, *(name for ref in refs for name in keys.decision(ref))]
        names += [keys.entries(ref) for ref in refs]
        fields = [field for ref in refs for field in (keys.field(ref), ref.name)]
        args: list[Argument] = [self.now(), 1, *fields, *[MILLION] * len(refs)]
        call = Call(script("capacity"), names, args)
        reply = yield call
        if reply[0] == _UNKNOWN:  # the windows of a calendar have run out
            yield from self.register_missing(refs, now)
            reply = yield call
        rows: Sequence[Sequence[int]] = reply[1:]
        return rows


@lru_cache(maxsize=1024)
def _unpacked(packed: bytes) -> Sequence[Limit]:
    return definitions.unpack(packed)


def _known(
    costs: Mapping[LimitRef, float], supplies: Mapping[LimitRef, object]
) -> Mapping[LimitRef, float]:
    return {ref: cost for ref, cost in costs.items() if ref in supplies}


def _ref(name: str, field: str) -> LimitRef:
    return LimitRef(name, None if field == name else field[len(name) + 1 :])


def _in_turn(flat: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return zip(*[iter(flat)] * size, strict=True)
