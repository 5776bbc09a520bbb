"""The code of the README and of each page works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.docs.code_blocks import Page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Its code is run in a process of its own: Django has one configuration for each process.
DJANGO = ROOT / "docs" / "how-to" / "django.md"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis_url: str) -> Iterator[Path]:
    """A directory to import from; afterwards the modules are as before."""
    modules = {*sys.modules}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in {*sys.modules} - modules:
        module = sys.modules[name]
        # A package without an __init__.py has no __file__.
        paths = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        if any(str(tmp_path) in str(path) for path in paths):
            del sys.modules[name]
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()  # messages at the broker


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_a_page(path: Path, redis_url: str, fresh: Path) -> None:
    page = Page(path, redis_url, fresh)
    assert not page.untested(), "give each block a language, or the reason why it is not tested"
    if path == DJANGO:
        run_alone(path, redis_url, fresh)
    else:
        page.test()


def run_alone(path: Path, url: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.code_blocks", path, url, directory],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(directory)])},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
