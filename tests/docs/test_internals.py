"""docs/internals.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs import pages
from tests.programs import ROOT

PAGE = pages.read("internals.md")
FOLDERS = ("celery_throttle", "tests", "deploy", "examples")


def test_each_file_on_the_page_exists() -> None:
    named = {*re.findall(r"`([\w/.]+\.(?:py|lua|yml|sh))`", PAGE)}
    assert len(named) > 100
    there = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in _files(folder)]
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


def _files(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.*") if path.is_file()]
