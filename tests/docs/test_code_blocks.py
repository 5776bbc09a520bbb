"""The code of the README and of each page works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.docs.child import run_in_child
from tests.docs.code_blocks import Page
from tests.docs.pages import DOCS
from tests.programs import ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis_url: str) -> Iterator[Path]:
    """A directory to import from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()  # messages at the broker


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_a_page(path: Path, redis_url: str, fresh: Path) -> None:
    page = Page(path, redis_url, fresh)
    assert not page.untested(), "give each block a language, or the reason why it is not tested"
    run_in_child(page.test)
