"""Runs the command in this process."""

from __future__ import annotations

import json
import shlex
from typing import Any

from click.testing import CliRunner

from celery_throttle.cli import main


def run(*options: str, text: str | None = None) -> tuple[int, str]:
    """Return exit code and output, including errors."""
    result = CliRunner().invoke(main, ["simulate", *options], input=text)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def figures(*options: str, text: str | None = None) -> Any:
    """Return what the command prints as JSON."""
    code, output = run(*options, "--json", text=text)
    assert code == 0, output
    return json.loads(output)


def words(command: str) -> list[str]:
    """Split a command into options as a shell does."""
    _, name, *options = shlex.split(command)
    assert name == "simulate"
    return options
