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

_LEVELS = ("warning", "error", "exception")

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


def test_log_lines_are_on_the_page() -> None:
    messages = {message for path in _modules() for message in _logged(path)}
    assert len(messages) > 30
    missing = [message for message in messages if not _is_on_page(message)]
    assert not missing


def _modules() -> Iterator[Path]:
    package = ROOT / celery_throttle.__name__
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] not in _OTHERS:
            yield path


def _logged(path: Path) -> Iterator[str]:
    """Yield the messages that a module logs as a warning or an error."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            of_logger = called in {f"logger.{level}" for level in _LEVELS}
            text = node.args[1] if called == "logger.log" else node.args[0]
            is_logged = of_logger or called in ("logger.log", "ErrorLog")
            if is_logged and isinstance(text, ast.Constant):
                yield str(text.value)


def _is_on_page(message: str) -> bool:
    """Whether the page has a part of a message that never varies."""
    parts = [part.strip(" .,:;") for part in _VARIABLE.split(message)]
    if message.startswith("%s The error"):  # of ErrorLog, whose messages are here by themselves
        return True
    least = min(_TELLING, max(map(len, parts)))
    return any(len(part) >= least and part in PAGE for part in parts)
