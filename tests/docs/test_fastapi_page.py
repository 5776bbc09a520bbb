"""The tests that docs/how-to/fastapi.md shows pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "fastapi.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```python\n# (\S+\.py)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)


def test_its_tests_pass(tmp_path: Path) -> None:
    for name, code in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_web.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
