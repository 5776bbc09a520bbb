"""Options, figures and results of benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Options:
    """Options: ``quick`` selects small sizes, ``full`` real minutes, ``say`` shows progress.

    ``against`` is another checkout, for benchmarks that can compare ours with it.
    """

    quick: bool
    say: Callable[[str], None]
    against: Path | None = None
    full: bool = False

    def pick(self, full: int, quick: int) -> int:
        """Return the size for these options."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: ours, theirs, and the bar that ours must meet, if there is one.

    If ``ours`` is the median of several rounds, ``rounds`` holds their values.
    """

    name: str
    unit: str
    ours: float
    theirs: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    rounds: Sequence[float] = ()

    @property
    def bar(self) -> str:
        """The bar as text; empty without one."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.at_least is not None:
            return self.ours >= self.at_least
        return None if self.at_most is None else self.ours <= self.at_most

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "figure": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "theirs": self.theirs,
            "bar": self.bar or None,
            "met": self.met,
            "rounds": list(self.rounds),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one benchmark; ``theirs`` names what ours are compared with."""

    name: str
    theirs: str
    figures: Sequence[Figure]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        figures = [figure.as_dict() for figure in self.figures]
        return {"name": self.name, "theirs": self.theirs, "figures": figures}

    def table(self) -> Table:
        """Return it as a table."""
        table = Table(title=f"{self.name} (theirs: {self.theirs})", title_justify="left")
        table.add_column("figure", min_width=52)
        table.add_column("unit")
        for column in ("ours", "theirs", "bar"):
            table.add_column(column, justify="right", min_width=8)
        table.add_column("met")
        for one in self.figures:
            met = {None: "", True: "[green]yes[/]", False: "[bold red]NO[/]"}[one.met]
            table.add_row(one.name, one.unit, _short(one.ours), _short(one.theirs), one.bar, met)
        return table


def _short(number: float | None) -> str:
    if number is None or math.isnan(number):
        return ""
    if isinstance(number, int):
        return f"{number:,}"
    digits = 0 if abs(number) >= 1000 else 1 if abs(number) >= 100 else 2 if abs(number) >= 2 else 4
    return f"{number:,.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank, ``share`` from 0 to 1."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
