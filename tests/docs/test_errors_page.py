"""The page of errors has every exception, and every warning and error that is logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_throttle
from tests.docs import pages
from tests.programs import ROOT

PAGE = pages.read("reference/errors.md")

#: By function: the parts of the page that may have its messages.
_SECTIONS = {
    "logger.warning": ("WARNING", "Other processes"),
    "logger.error": ("ERROR", "Other processes"),
    "logger.exception": ("ERROR", "Other processes"),
    "logger.log": ("ERROR", "WARNING", "Other processes"),
    "ErrorLog": ("ERROR", "Other processes"),
}

#: These have no log of an operator.
_OTHERS = {"cli", "demo", "simulation", "test_support"}

#: What a message does not always have: its page has ``...`` or an example there.
_VARIABLE = re.compile(r"%[-.\d]*[a-z]|\n.*")

#: The characters of a part that is enough to find a message by.
_TELLING = 10


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in celery_throttle.__all__
        if name.endswith(("Error", "Warning")) or name == "Throttled"
    ],
)
def test_an_exception_is_on_the_page(name: str) -> None:
    assert f"autoexception:: celery_throttle.{name}\n" in PAGE


def test_log_lines_are_on_the_page_under_their_level() -> None:
    messages = {line for path in _modules() for line in _logged(path)}
    assert len(messages) > 30
    missing = [line for line in messages if not _is_on_page(*line)]
    assert not missing


def _modules() -> Iterator[Path]:
    package = ROOT / celery_throttle.__name__
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] not in _OTHERS:
            yield path


def _logged(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the warnings and errors that a module logs: by which function, and the message."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            text = node.args[1] if called == "logger.log" else node.args[0]
            if called in _SECTIONS and isinstance(text, ast.Constant):
                yield called, str(text.value)


def _is_on_page(called: str, message: str) -> bool:
    """Whether the page has a part of a message that never varies, under its level."""
    parts = [part.strip(" .,:;") for part in _VARIABLE.split(message)]
    if message.startswith("%s The error"):  # of ErrorLog, whose messages are here by themselves
        return True
    least = min(_TELLING, max(map(len, parts)))
    sections = [_section(name) for name in _SECTIONS[called]]
    return any(len(part) >= least and part in text for part in parts for text in sections)


def _section(heading: str) -> str:
    return PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
