"""The workflows of GitHub run commands that exist here; actionlint checks their form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()


def commands(job: dict[str, Any]) -> Iterator[str]:
    """The commands of a job, with each value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job["steps"]:
        names = {
            variable: re.sub(r"\$\{\{ matrix\.(\w+) \}\}", r"\1", value)
            for variable, value in step.get("env", {}).items()
        }
        texts = [step["run"]] if "run" in step else []
        for variable, name in names.items():
            texts = [
                re.sub(rf'"?\${variable}"?', value, text)
                for text in texts
                for value in matrix.get(name, [name])
            ]
        yield from texts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_exists(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    sessions = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    found = [command for _, job in jobs(path) for command in commands(job)]
    assert found
    for command in found:
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        if words[0].startswith(".ci/"):
            assert (ROOT / words[0]).stat().st_mode & 0o100, command
        for session in re.findall(r"--session (\w+)", command):
            assert f"def {session}(" in sessions, command


def test_each_python_of_the_package_is_tested() -> None:
    [job] = [job for name, job in jobs(ROOT / ".github/workflows/ci.yml") if name == "test"]
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert job["strategy"]["matrix"]["python"] == re.findall(r":: Python :: (3\.\d+)\"", metadata)
