"""Options, figures and results of benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """One figure: ours, theirs if there are, and the bar that ours must meet, if there is one.

    The first of several about one subject is named ``subject: figure``, the others ``  figure``. If
    ``value`` is the median of several rounds, ``rounds`` holds their values.
    """

    name: str
    unit: str
    value: float
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
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one benchmark; ``theirs`` names what ours are compared with, if anything."""

    name: str
    theirs: str
    figures: Sequence[Figure]

    def table(self) -> Table:
        """Return it as a table."""
        theirs = f" (theirs: {self.theirs})" if self.theirs else ""
        table = Table(title=self.name + theirs, title_justify="left")
        table.add_column("figure", min_width=52)
        table.add_column("unit")
        for column in ("value", "theirs", "bar"):
            table.add_column(column, justify="right", min_width=8)
        table.add_column("met")
        for one in self.figures:
            met = {None: "", True: "[green]yes[/]", False: "[bold red]NO[/]"}[one.met]
            table.add_row(one.name, one.unit, short(one.value), short(one.theirs), one.bar, met)
        return table


def short(number: float | None) -> str:
    """Return a number with three digits or so; nothing for no number."""
    if number is None or math.isnan(number):
        return ""
    if isinstance(number, int):
        return f"{number:,}"
    size = abs(number)
    if not size:
        return "0"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 2 else 3 if size >= 0.1 else 4
    return f"{number:,.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank, ``share`` from 0 to 1."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
