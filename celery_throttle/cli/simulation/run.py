"""Runs a trace against one limit: what it decides, the figures of that, and charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.cli.shared import charts
from celery_throttle.cli.shared.charts import Chart
from celery_throttle.cli.shared.exit_codes import ArgumentError
from celery_throttle.cli.shared.text import percentile
from celery_throttle.cli.simulation.traces import Arrival, Trace, format_seconds
from celery_throttle.limits.cost import MILLION, to_millionths, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS, UNITS, to_us
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate

_REF = LimitRef("simulated", None)

_MAX_BARS = 125


class ArrivalOutcome(NamedTuple):
    """The outcome of one arrival."""

    arrival: Arrival
    start: int | None  #: microseconds; None if it was refused
    retry_after: int = 0  #: of a refusal, microseconds until it could pass

    @property
    def wait(self) -> int:
        """Microseconds from the arrival to the start; 0 if it was refused."""
        return 0 if self.start is None else self.start - self.arrival.time


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The outcomes of a trace at one limit."""

    limit: Limit
    outcomes: tuple[ArrivalOutcome, ...]  #: one for each arrival, in their order
    slot_us: int = 0  #: microseconds that each arrival holds its slot; 0 for other limits

    @property
    def admitted(self) -> list[tuple[int, Arrival]]:
        """Pairs of start and arrival, in order."""
        return [(one.start, one.arrival) for one in self.outcomes if one.start is not None]

    @property
    def refused(self) -> list[Arrival]:
        """Arrivals that were refused for good."""
        return [one.arrival for one in self.outcomes if one.start is None]

    @property
    def window(self) -> int:
        """Microseconds: the period of the limit, or the time that a slot is held."""
        rate = self.limit.rate
        return rate.period_us if isinstance(rate, Rate) else self.slot_us


def run_trace(
    trace: Trace, limit: Limit, *, in_line: bool = False, slot_us: int = 0
) -> SimulatedRun:
    """Run a trace against a limit that is unused before.

    ``in_line``: a refused request waits in a line, first come, first served, as tasks do; otherwise
    it is dropped. A ``leaky-queue`` is a line of its own, and refuses what its burst has no room
    for. ``slot_us``: microseconds that each request holds its slot, if the limit has slots.

    Raises:
        ArgumentError: the limit has slots, and ``slot_us`` is 0.
        CostError: a cost is above the burst.
    """
    if limit.algorithm != CONCURRENCY:
        slot_us = 0
    elif slot_us == 0:
        raise ArgumentError(
            f"'{limit}' has slots, and needs the time that each is held; "
            "allowed: with --duration, such as --duration 0.5s"
        )
    in_line = in_line and limit.algorithm != "leaky-queue"
    return SimulatedRun(limit, tuple(_outcomes(trace, limit, slot_us, in_line=in_line)), slot_us)


def _outcomes(
    trace: Trace, limit: Limit, slot_us: int, *, in_line: bool
) -> Iterator[ArrivalOutcome]:
    local, head = MemoryLimits({_REF.name: limit}), 0

    def acquire(arrival: Arrival, now: int) -> Decision:
        costs = {_REF: arrival.cost}
        if not slot_us:
            return local.acquire(costs, now)
        decision = local.peek(costs, now)
        taken = local.reserve(costs, now) if decision else None
        if taken is not None:  # the lease expires when the request would release its slot
            local.renew(taken, slot_us, now)
        return decision

    for arrival in trace.arrivals:
        at = max(arrival.time, head)
        while not (decision := acquire(arrival, at)) and in_line:
            at += to_us(decision.retry_after or 0.0)
        if decision:
            head = at if in_line else 0
            yield ArrivalOutcome(arrival, at + to_us(decision.delay))
        else:
            yield ArrivalOutcome(arrival, None, to_us(decision.retry_after or 0.0))


def figures(run: SimulatedRun) -> dict[str, Any]:
    """Return the figures of a run for JSON; None for what does not apply.

    Waits are the seconds from arrival to start, of admitted arrivals. The fullest window has the
    most units that started in any ``window_s`` seconds; for slots, the most that were held at once.
    """
    waits = [one.wait / MICROSECONDS for one in run.outcomes if one.start is not None]
    return {
        "limit": str(run.limit),
        "admitted": len(waits),
        "refused": len(run.refused),
        "fullest_window": to_units(fullest(run)[0]),
        "window_s": None if run.slot_us else run.window / MICROSECONDS,
        "wait_p50_s": percentile(waits, 0.5),
        "wait_p95_s": percentile(waits, 0.95),
        "wait_p99_s": percentile(waits, 0.99),
        "wait_max_s": percentile(waits, 1),
    }


def fullest_text(found: Mapping[str, Any]) -> str:
    """Return the fullest window of figures: ``"20 in 60 s"``; for slots ``"10 at once"``."""
    amount = f"{found['fullest_window']:,}"
    if found["window_s"] is None:
        return f"{amount} at once"
    us = to_us(found["window_s"])
    unit = next((unit for unit in ("month", "w", "d", "h") if us % UNITS[unit] == 0), None)
    return f"{amount} in " + (f"{us // UNITS[unit]} {unit}" if unit else f"{format_seconds(us)} s")


def fullest(run: SimulatedRun) -> tuple[int, int]:
    """Return the fullest half-open window: its millionths of a unit, and its start.

    Each slot counts as one unit.
    """
    admitted, length = run.admitted, run.window
    amounts = [MILLION if run.slot_us else to_millionths(one.cost) for _, one in admitted]
    best = (0, 0)
    stop = amount = 0
    # The fullest window begins with an admission.
    for first, (start, _) in enumerate(admitted):
        while stop < len(admitted) and admitted[stop][0] < start + length:
            amount += amounts[stop]
            stop += 1
        if amount > best[0]:
            best = (amount, start)
        amount -= amounts[first]
    return best


def save_charts(trace: Trace, runs: Sequence[SimulatedRun], path: Path) -> None:
    """Draw the arrivals at the top, and what each limit admitted and refused of them."""
    ends = [trace.arrivals[-1].time, *(start for run in runs for start, _ in run.admitted[-1:])]
    span = max(ends) - trace.origin
    # A round number of microseconds: 1, 2, 5, 10 and so on.
    steps = (factor * 10**digits for digits in count() for factor in (1, 2, 5))
    width = next(step for step in steps if step * _MAX_BARS > span)
    number = span // width + 1

    def units(arrivals: Iterable[tuple[int, Arrival]]) -> list[float]:
        sums = [0] * number
        for time, arrival in arrivals:
            sums[(time - trace.origin) // width] += to_millionths(arrival.cost)
        return [amount / MILLION for amount in sums]

    arrived = units((one.time, one) for one in trace.arrivals)
    started = [units(run.admitted) for run in runs]
    lanes = [Chart("arrivals", arrived, charts.GRAY, f"{len(trace.arrivals):,}")]
    for run, values in zip(runs, started, strict=True):
        found, begin = figures(run), (fullest(run)[1] - trace.origin) / MICROSECONDS
        shaded = None if run.slot_us else (begin, begin + run.window / MICROSECONDS)
        refused = units((one.time, one) for one in run.refused)
        counts = f"{found['admitted']:,} admitted, {found['refused']:,} refused"
        lanes.append(
            Chart(
                str(run.limit),
                values,
                charts.BLUE,
                f"{counts}, at most {fullest_text(found)}",
                top=max(map(max, started)),
                shares=[gone / (all_ or 1) for gone, all_ in zip(refused, arrived, strict=True)],
                shaded=shaded,
            )
        )
    since = f" since {trace.arrivals[0].label}" if trace.origin else ""
    label = (
        f"seconds{since}; a bar is {format_seconds(width)} s; below the line: "
        "share of the arrivals that is refused; shaded: the fullest window"
    )
    charts.save(path, lanes, [bar * width / MICROSECONDS for bar in range(number + 1)], label)
