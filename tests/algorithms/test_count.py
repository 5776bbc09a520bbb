"""The number of traces that the properties play in the nightly suite."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.algorithms.limits import EVERY, LIMITS
from tests.algorithms.properties import TRACES, VARIANTS

#: Of each algorithm, over all properties.
LEAST = 10_000


def test_every_algorithm_plays_enough_traces() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        import_module(f"tests.algorithms.{path.stem}")
    assert set(TRACES) == set(EVERY) == set(LIMITS)
    assert {len(limits) for limits in LIMITS.values()} == {VARIANTS}
    assert {name: count for name, count in TRACES.items() if count < LEAST} == {}
