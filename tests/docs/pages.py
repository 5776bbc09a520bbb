"""The pages of the documentation, and what they contain."""

from __future__ import annotations

import re

from tests.programs import ROOT

DOCS = ROOT / "docs"

_FILE = re.compile(r"^```\w+\n# (\S+\.(?:py|toml))(?:, .*)?\n((?:.*\n)*?)```", re.MULTILINE)


def read(page: str) -> str:
    """Return the text of a page, named by its path in `docs`."""
    return (DOCS / page).read_text(encoding="utf-8")


def table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of any level, without its head."""
    below = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#", below, maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| ?(.*) ?\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def files(page: str) -> list[tuple[str, str]]:
    """Return the paths and contents of the files that a page shows, or parts of them.

    Their blocks begin with the path as a comment, perhaps with a note after a comma.
    """
    return _FILE.findall(read(page))
