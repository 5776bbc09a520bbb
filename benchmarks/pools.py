"""Every pool: use of the quota, fullest second, and how late starts are, at 100 a second.

Two workers, all tasks sent at once; the figures are those of ``quota.py``. There are no theirs: the
recipe's worst figure does not depend on the pool.
"""

from __future__ import annotations

from benchmarks.quota import Load, Outcome, measure
from benchmarks.results import Figure, Options, Result

#: Pool -> how many tasks one of it runs at once.
SIZES = {"prefork": 2, "solo": 1, "threads": 4, "gevent": 10, "eventlet": 10}

RATE = 100


def run(options: Options) -> Result:
    """Measure each pool."""
    load = Load(f"{RATE}/s", options.pick(1000, 300))
    figures: list[Figure] = []
    for pool, size in SIZES.items():
        options.say(f"pools: {pool}, {load}")
        figures += _figures(pool, measure("ours", load, pool, size))
    return Result(name="pools", theirs="nobody", figures=figures)


def _figures(pool: str, one: Outcome) -> list[Figure]:
    return [
        Figure(f"{pool}: quota used", "", one.used, at_least=0.99),
        Figure("  fullest second, admissions", "", one.fullest_admissions, at_most=RATE + 1),
        Figure("  fullest second, starts", "", one.fullest_starts),
        Figure("  start after admission, median", "ms", one.late(0.5)),
        Figure("  start after admission, p99", "ms", one.late(0.99), at_most=20),
    ]
