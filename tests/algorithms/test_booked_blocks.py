"""Blocks of units for a worker's tasks, which a gate takes at once and books ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from celery_throttle.algorithms.meters import LeakyQueue, Meter
from celery_throttle.algorithms.state import State, ceil_div
from celery_throttle.algorithms.windows import FixedWindow
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import ADAPTIVE
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.define import register_missing
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import ReplyStatus
from tests.algorithms.limits import METERS, RATES
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Admission, Side
from tests.algorithms.test_bounds import most_in, rate_of, shortest, window_of
from tests.algorithms.traces import Step, traces

blocks = traces(acquire=3, advance=2)

Reply = Sequence[int]


def asked(side: Side, cost: int, times: int, ahead: int) -> Plan[Reply]:
    """Return one task's reply; register calendar windows that have run out."""
    want = GateRequest(side.requirement(cost), times)
    (reply,) = yield gate_call(side.plans, [want], ahead)
    if reply[0] == ReplyStatus.UNKNOWN:
        yield from register_missing(side.plans, [side.ref], int(reply[2]))
        (reply,) = yield gate_call(side.plans, [want], ahead)
    return reply  # type: ignore[no-any-return]  # a reply of the server


class Block(NamedTuple):
    """The request of a step: a cost, the number of tasks, and how far ahead."""

    cost: int
    times: int
    ahead: int

    @classmethod
    def of(cls, step: Step, limit: Limit) -> Block:
        times = 1 + (step.share + step.more) % 37
        cost = max(1, step.cost(limit, least=1) // times)
        return cls(cost, times, step.share % 3 * MAX_BOOKING_US // 2)


def expected(limit: Limit, state: State, block: Block, now: int) -> Reply:
    """The reply without the distance of its starts and how long they are valid."""
    queue = isinstance(state, LeakyQueue)
    wait = state.delay(now) if isinstance(state, LeakyQueue) else state.wait(limit, block.cost, now)
    if wait > block.ahead:
        return [0]
    if wait > 0 or block.times == 1 or queue:
        return [1, 1, int(wait == 0), wait]
    p, q = limit.ticks
    a_second = math.floor(1e12 * q / (block.cost * p))
    times = min(block.times, max(1, a_second))
    if not isinstance(state, Meter):
        fits = min(times, state.remaining_and_reset(limit, now)[0] // block.cost)
        return [1, fits, fits, 0]
    step, free = ceil_div(block.cost * p, MILLION), limit.burst * p - state.used(now)
    booked = (free + block.ahead * q) // step
    later = ceil_div((free // step + 1) * step - free, q)
    return [1, min(times, booked), min(times, free // step), later]


@shown(150, RATES, blocks)
def test_a_block_books_no_farther_than_it_may(side: Side, trace: list[Step]) -> Plan[None]:
    """The figures are those of the Python twin, which takes as much and agrees afterwards."""
    for step in trace:
        if step.do != "acquire":
            yield from side.play(step)
            continue
        now, limit = side.clock.now, side.limit
        wanted = Block.of(step, limit)
        state = side.local._check(side.ref, 0, now)[0].state
        figures = expected(limit, state, wanted, now)
        reply = yield from asked(side, *wanted)
        assert reply[:4] == figures
        if not reply[0]:
            continue
        wait = 0 if reply[2] else reply[3]
        taken = state.take(limit, wanted.cost * reply[1], now, now + wait)
        left = taken.stop - now if isinstance(taken, FixedWindow) else wanted.ahead
        assert reply[5] == min(wanted.ahead, left)
        side.local._states[side.ref] = (taken,)
        yield from side.peek(0)


@shown(100, RATES, blocks)
def test_starts_of_blocks_are_never_over(side: Side, trace: list[Step]) -> Plan[None]:
    """Each start counts at its own time, not when it was booked; in nanoseconds."""
    limit = side.limit
    starts: list[Admission] = []
    for step in trace:
        if step.do != "acquire":
            yield from side.play(step)
            continue
        wanted = Block.of(step, limit)
        reply = yield from asked(side, *wanted)
        if reply[0]:
            times, at_once, later, apart = reply[1:5]
            waits = [0] * at_once
            waits += [later * 1000 + number * apart for number in range(times - at_once)]
            for wait in waits:
                passed, now = side.passed * 1000 + wait, side.clock.now + wait // 1000
                starts.append(Admission(passed, now, wanted.cost))
    starts.sort()
    check_starts(limit, starts)


def check_starts(limit: Limit, starts: list[Admission]) -> None:
    most, period = limit.burst * MILLION, rate_of(limit).period_us
    if limit.algorithm in (*METERS, ADAPTIVE):
        p, q = rate_of(limit).interval
        for place, first in enumerate(starts):
            total = 0
            for last in starts[place:]:
                total += last.cost
                # A slot is told in whole microseconds, rounded up, the next in nanoseconds.
                drained = (last.passed - first.passed + 2000) * q
                assert (total - most) * p * 1000 <= drained * MILLION
    elif limit.algorithm == "fixed-window":
        assert most_in(starts, 1000 * shortest(limit)) <= 2 * most
        if limit.window != "first-request":
            windows = {window_of(limit, one.now) for one in starts}
            for window in windows:
                inside = (one.cost for one in starts if window_of(limit, one.now) == window)
                assert sum(inside) <= most
    elif limit.algorithm == "sliding-log":
        assert most_in(starts, 1000 * period) <= most
    else:
        assert most_in(starts, 1000 * (period - period // limit.parts)) <= most
        assert most_in(starts, 1000 * period) <= 2 * most


def test_a_block_of_a_queue_is_one_that_starts_after_those_before(sides: Sides) -> None:
    replies: list[Reply] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(3):
            reply = yield from asked(side, MILLION, 5, MAX_BOOKING_US)
            replies.append(reply)

    sides.show(ask, [Limit.parse("100/s burst 9 using leaky-queue")], [])
    assert [reply[:4] for reply in replies] == [[1, 1, 1, 0], [1, 1, 0, 10_000], [1, 1, 0, 20_000]]


@pytest.mark.parametrize("ahead", [0, 5_000, MAX_BOOKING_US])
def test_a_block_is_good_until_its_window_ends(sides: Sides, ahead: int) -> None:
    replies: list[Reply] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(2):
            reply = yield from asked(side, MILLION, 9, ahead)
            replies.append(reply)

    limit = Limit.parse("5/s using fixed-window")
    sides.show(ask, [limit], [], start=1_700_000_000_990_000)
    assert replies[0] == [1, 5, 5, 0, 200_000_000, min(ahead, 10_000)]
    if ahead < 10_000:
        assert replies[1] == [0]
    else:  # one in the next window, of which the rest is to be asked for again
        assert replies[1] == [1, 1, 0, 10_000, 0, ahead]


@pytest.mark.parametrize(
    ("limit", "cost", "units"),
    [
        ("5/s burst 200", 1, 5),
        ("5/s burst 200", 2, 2),
        ("1/h burst 200", 1, 1),
        ("36000/h using fixed-window", 1, 10),
        ("600/m using sliding-window", 1, 10),
        ("600/m using sliding-log", 0.5, 20),
    ],
)
def test_a_block_is_no_larger_than_what_the_limit_gives_in_a_second(
    sides: Sides, limit: str, cost: float, units: int
) -> None:
    """What a worker that ends has not used is lost: of a long burst, that may be most of it."""
    replies: list[Reply] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        reply = yield from asked(side, round(cost * MILLION), 200, MAX_BOOKING_US)
        replies.append(reply)

    sides.show(ask, [Limit.parse(limit)], [])
    assert replies[0][:3] == [1, units, units]


def test_no_block_has_slots(sides: Sides) -> None:
    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        assert (yield from asked(side, MILLION, 9, MAX_BOOKING_US)) == [0]

    sides.show(ask, [Limit.parse("5 at once")], [])
