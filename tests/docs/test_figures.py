"""Tables of the docs show the figures in docs/figures, which the benchmarks have written."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_at_scale_shows_what_the_benchmark_wrote() -> None:
    """``python -m benchmarks workers --json docs/figures/workers.json``."""
    [report] = json.loads((DOCS / "figures/workers.json").read_text())["benchmarks"]
    fleets: dict[str, list[float]] = {}
    for figure in report["figures"]:
        name, is_first, _ = figure["figure"].partition(":")
        if is_first and not name.startswith(" "):
            fleets[name] = row = []
        row.append(figure["ours"])
    page = (DOCS / "concepts/scale.md").read_text()
    shown = dict(re.findall(r"^\| ([\d,]+ workers.+?) \| (.+) \|$", page, re.MULTILINE))
    simulated = {name: row for name, row in fleets.items() if "real" not in name}
    assert shown == {
        name: f"{idle:.0f} | {calls:.2f} | {us:.0f} | {used:.3f} | {delay:.0f} ms"
        for name, (idle, calls, us, used, _, delay) in simulated.items()
    }


def test_the_page_of_capacity_computes_with_what_the_benchmark_wrote() -> None:
    """``python -m benchmarks capacity --json docs/figures/capacity.json``."""
    [report] = json.loads((DOCS / "figures/capacity.json").read_text())["benchmarks"]
    us, calls, overhead, connections, broker_us = (one["ours"] for one in report["figures"])
    tasks, waiting, message, workers = 100_000, 100_000_000, 900, 1_000
    primaries = math.ceil(tasks * us / 700_000)
    memory = waiting * (message + overhead) / primaries / 1e9
    brokers = math.ceil(tasks * broker_us / 700_000)
    page = (DOCS / "concepts/capacity.md").read_text()
    shown = dict(re.findall(r"^\| (.+?) \|.*\| (.+?) \|$", page, re.MULTILINE))
    assert (
        shown.items()
        >= {
            "processor time of a shard": f"{us:.0f} µs a task",
            "calls to a shard": f"{calls:.1f} a task",
            "memory of a waiting task besides its message": f"{overhead:.0f} bytes",
            "connections of a worker to a shard": f"{connections:.1f}",
            "processor time of the broker": f"{broker_us:.0f} µs a task",
            "tasks a second of one primary": f"{700_000 / us:,.0f}",
            "primaries": f"{primaries}",
            "memory of each primary": f"{2 * memory:.1f} GB",
            "connections of each primary": f"{workers * connections:,.0f}",
            "brokers": f"{brokers}",
        }.items()
    )


def test_the_page_of_capacity_shows_what_the_benchmark_of_shards_wrote() -> None:
    """``python -m benchmarks shards --json docs/figures/shards.json``."""
    [report] = json.loads((DOCS / "figures/shards.json").read_text())["benchmarks"]
    page, figures = (DOCS / "concepts/capacity.md").read_text(), report["figures"]
    for first, figure in enumerate(figures):
        fleet, is_fleet, _ = figure["figure"].partition(": calls a second of the busiest node")
        nodes, is_nodes, _ = figure["figure"].partition(": processor time a task")
        of = [one["ours"] for one in figures[first : first + 6]]
        if is_fleet:
            idle, busy, calls, used, _, delay = of
            shown = f"{idle:.0f} | {busy:.0f} | {calls:.2f} | {used:.3f} | {delay:.0f} ms |"
            assert f"| {fleet} | {shown}" in page
        elif is_nodes and "on" in nodes.split():
            _, us, commands, _, calls, busiest = of
            shown = f"{us:.2f} | {commands:.2f} | {calls:.2f} | {busiest:.2f} |"
            assert f"| {nodes} | {shown}" in page
    one, divided = figures[-_OF_NODES]["ours"], figures[-1]["ours"]
    assert f"needs {divided:.2f} calls a task instead of {one:.2f}" in page


#: Figures from the calls of one shard to the last one.
_OF_NODES = 1 + 3 * 6 + 2
