"""Tables of the docs show the figures in docs/figures, which the benchmarks have written."""

from __future__ import annotations

import json
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
