"""The links of pages that Sphinx does not read: those beside pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import ROOT

LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)|src(?:set)?=\"([^\"]+)\"")


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_each_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for name, anchor, picture in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        target = ROOT / (name or picture or page)
        assert target.exists(), f"{page}: no {target.relative_to(ROOT)}"
        if anchor:
            assert anchor in _anchors(target), f"{page}: {name} has no heading #{anchor}"


def _anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    explicit = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings} | {
        *explicit
    }
