"""Pages of the docs show the figures in docs/figures, which the benchmarks have written."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.pages import FIGURES, pages, shown_on, with_figures
from benchmarks.results import short


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_shows_what_the_benchmarks_wrote(page: Path) -> None:
    """To repair it: ``python -m benchmarks.pages``."""
    text = page.read_text(encoding="utf-8")
    assert with_figures(text) == text


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_page_shows_all_figures_of_a_benchmark(name: str) -> None:
    shown = with_figures(f"<!-- figures of {name} -->\n<!-- end of {name} -->")
    file = FIGURES / f"{name}.json"
    recorded = json.loads(file.read_text(encoding="utf-8"))["figures"] if file.exists() else []
    cells = [cell.strip() for cell in shown.split("|")]
    missing = [one["name"] for one in recorded if not _is_shown(one, cells)]
    assert not missing


def _is_shown(figure: dict[str, Any], cells: list[str]) -> bool:
    value = short(figure["value"])
    return any(cell == value or cell.startswith(f"{value} (") for cell in cells)


def test_the_figures_of_each_benchmark_have_one_place() -> None:
    """A page shows them once they are recorded."""
    shown = [name for page in pages() for name in shown_on(page)]
    assert sorted(shown) == sorted(NAMES)


def test_the_comparison_says_truly_where_others_cost_the_server_less() -> None:
    """*Where the others are better* names them without figures."""
    figures = json.loads((FIGURES / "race.json").read_text(encoding="utf-8"))["figures"]
    cost: dict[str, float] = {}
    for figure in figures:
        if not figure["name"].startswith(" "):
            side = figure["name"].partition(": ")[0]
        elif "processor time of the server" in figure["name"]:
            cost[side] = figure["value"]
    assert cost['rate_limit="100/s", gevent'] < cost["celery_throttle"] / 2


def test_the_page_on_scale_says_how_many_tasks_a_core_carries() -> None:
    figures = json.loads((FIGURES / "workers.json").read_text(encoding="utf-8"))["figures"]
    names = [figure["name"] for figure in figures]
    first = next(n for n, name in enumerate(names) if name.startswith("1,000 workers, 200/s: "))
    time = names.index("  processor time of the server a task", first)
    cost = figures[time]["value"]
    page = (FIGURES.parent / "concepts" / "scale.md").read_text(encoding="utf-8")
    tasks = round(700_000 / cost, -2)
    assert f"At {short(cost)} µs a task, 70% of a core carries {tasks:,.0f} paced tasks" in page


def test_the_readme_rounds_what_the_race_measured() -> None:
    report = json.loads((FIGURES / "race.json").read_text(encoding="utf-8"))
    sides = ["celery_throttle", "retry recipe", 'rate_limit="100/s"']
    used: dict[str, float] = {}
    deliveries: dict[str, float] = {}
    side = ""
    for figure in report["figures"]:
        if not figure["name"].startswith(" "):
            side = figure["name"].partition(": ")[0]
            used[side] = figure["value"]
        elif figure["name"].strip() == "deliveries a task":
            deliveries[side] = figure["value"]
    readme = (FIGURES.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"run on {report['date']}" in readme
    for row in (
        ["share of the quota used", *(f"{used[one]:.0%}" for one in sides)],
        ["deliveries per task", *(f"{deliveries[one]:.1f}" for one in sides)],
    ):
        assert f"| {' | '.join(row)} |" in readme, "README.md needs this row"


def test_the_page_of_capacity_computes_with_what_the_benchmark_wrote() -> None:
    file = FIGURES / "capacity.json"
    figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    us, _, overhead, of_shard, of_node, broker_us = (one["value"] for one in figures)
    tasks, waiting, message, workers = 100_000, 100_000_000, 900, 1_000
    primaries = math.ceil(tasks * us / 700_000)
    memory = waiting * (message + overhead) / primaries / 1e9
    page = (FIGURES.parent / "concepts/capacity.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| (.+?) \|.*\| (.+?) \|$", page, re.MULTILINE))
    assert (
        shown.items()
        >= {
            "tasks a second of one primary": f"{700_000 / us:,.0f}",
            "primaries": f"{primaries}",
            "memory of each primary": f"{2 * memory:.1f} GB",
            "connections of each primary": f"{workers * (of_shard + of_node):,.0f}",
            "brokers": f"{math.ceil(tasks * broker_us / 700_000)}",
        }.items()
    )
