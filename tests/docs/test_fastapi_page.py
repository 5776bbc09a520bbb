"""The tests that docs/how-to/fastapi.md shows pass."""

from __future__ import annotations

from pathlib import Path

from tests.docs import pages
from tests.programs import run_python, search_path


def test_its_tests_pass(tmp_path: Path) -> None:
    for name, code in pages.files("how-to/fastapi.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, encoding="utf-8")
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "test_web.py"]
    env = {"PYTHONPATH": search_path(tmp_path)}
    assert "3 passed" in run_python(*pytest, env=env, cwd=tmp_path)
