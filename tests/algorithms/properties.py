"""Turns a property of one limit into a test with many traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_throttle.limiter.backend import Plans
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import pack_command
from celery_throttle.testing import ManualClock
from tests import sizes
from tests.algorithms.limits import LIMITS, any_rate, any_slots
from tests.algorithms.sides import START, Side
from tests.algorithms.traces import Step
from tests.algorithms.wire import Playing, Wire, together

#: What has to hold for one side while it plays a trace.
Property = Callable[[Side, list[Step]], Playing[None]]

#: Traces of each algorithm over all properties; see ``test_count.py``.
TRACES: Counter[str] = Counter()

# The time at the start: one as any, that of a new ManualClock, and some minutes before the clocks
# of two zones change.
_starts = st.sampled_from([START, START, START, 0, 1_710_064_500_000_000, 1_698_537_300_000_000])


#: Limits of an algorithm at which an example is played.
VARIANTS = 4


@dataclass
class Sides:
    """Makes limits on both sides of one server."""

    wire: Wire

    def show(
        self,
        holds: Property,
        limits: Sequence[Limit],
        trace: list[Step],
        *,
        key: str | None = None,
        others: Sequence[Limit] = (),
        start: int = START,
    ) -> None:
        """Play a trace with several limits at the same time."""
        self.wire.ask(pack_command("FLUSHDB"))
        plans = []
        for number, limit in enumerate(limits):
            clock = ManualClock(start)
            ref = LimitRef(f"limit{number}", key)
            side = Side(limit, ref, Plans({}, Keys(), clock), clock, others)
            plans.append(_defined(side, holds, trace))
        together(self.wire, plans)


def _defined(side: Side, holds: Property, trace: list[Step]) -> Playing[None]:
    yield from side.define(side.limit)
    yield from holds(side, trace)


def bounded(examples: int) -> settings:
    return settings(
        max_examples=sizes.examples(examples),
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def counted(examples: int, algorithms: Sequence[str], limits: int) -> int:
    """Count the traces of a property that plays each example with several limits."""
    TRACES.update(dict.fromkeys(algorithms, examples * limits))
    return examples


def shown(
    examples: int,
    algorithms: Sequence[str],
    traces: st.SearchStrategy[list[Step]],
    *,
    keys: Sequence[str | None] = (None, "key"),
    defining: bool = False,
) -> Callable[[Property], Callable[..., None]]:
    """Turn a property into a test: examples of each algorithm, each with all of its limits.

    ``defining``: whether there are steps that define another limit.
    """

    def decorate(holds: Property) -> Callable[..., None]:
        counted(examples, algorithms, VARIANTS)

        @pytest.mark.parametrize("algorithm", algorithms)
        def test(sides: Sides, algorithm: str) -> None:
            other = any_slots if algorithm == CONCURRENCY else any_rate
            pair = st.tuples(other, other) if defining else st.just(())

            @bounded(examples)
            @given(
                limits=st.tuples(*LIMITS[algorithm]),
                trace=traces,
                key=st.sampled_from(keys),
                others=pair,
                start=_starts,
            )
            def play(
                limits: Sequence[Limit],
                trace: list[Step],
                key: str | None,
                others: Sequence[Limit],
                start: int,
            ) -> None:
                sides.show(holds, limits, trace, key=key, others=others, start=start)

            play()

        return test

    return decorate
