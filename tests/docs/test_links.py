"""The links of pages that Sphinx does not read: those beside pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def test_the_readme_on_the_index_has_no_relative_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    [fragment] = hook["fragments"]
    text = (ROOT / fragment["path"]).read_text(encoding="utf-8")
    text, end, _ = text.partition(fragment["end-before"])
    assert end
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert not LINK.findall(text)
