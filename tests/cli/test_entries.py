"""Both entries as processes: what they import, errors as one line, exit codes, completion."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_throttle import Limiter
from celery_throttle.cli import main, throttle
from tests.cli.conftest import fill
from tests.programs import ROOT
from tests.servers.server import free_port

COMMAND = str(Path(sys.executable).with_name("celery-throttle"))
CELERY = (sys.executable, "-m", "celery", "-A", "tests.apps.operated")


def run(*command: str, env: Mapping[str, str] | None = None, code: int = 0) -> str:
    """Return standard output, or of an error the line on standard error."""
    inherited = {name: value for name, value in os.environ.items() if name != "THROTTLE_URL"}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**inherited, **(env or {})},
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr if code else result.stdout


@pytest.mark.thorough
def test_two_shells(app: Any, redis_url: str) -> None:
    fill(app, 5)
    env = {"CELERY_BROKER_URL": redis_url}
    run(*CELERY, "throttle", "pause", "mail", "--reason", "incident 12", "--by", "ann@web", env=env)
    for shell in ((*CELERY, "throttle"), (COMMAND, "--url", redis_url)):
        output = run(*shell, "ls", env=env)
        assert "limit mail is paused until it is resumed, by ann@web: incident 12" in output
        assert "waits in a line of queue" in run(*shell, "why", "id3", env=env)
    assert "5 tasks" in run(COMMAND, "show", "mail", env={"THROTTLE_URL": redis_url})


def test_a_server_that_cannot_be_reached() -> None:
    url = f"redis://ann:secret@127.0.0.1:{free_port()}/0"
    error = run(COMMAND, "--url", url, "ls", code=3)
    assert error.startswith("Error: the server at redis://")
    assert error.count("\n") == 1
    assert "secret" not in error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "no server is named; give --url"),
        (("--url", "http://ann:secret@host"), "'http://host' is not a server"),
    ],
)
def test_options_that_cannot_be_used(options: tuple[str, ...], text: str) -> None:
    result = CliRunner(env={"THROTTLE_URL": None}).invoke(main, [*options, "ls"])
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert "secret" not in result.stderr


def test_an_app_without_limits() -> None:
    app: Any = Celery("plain", set_as_current=False)
    context = CLIContext(app=app, no_color=False, workdir=None)
    result = CliRunner().invoke(throttle, ["ls"], obj=context)
    assert (result.exit_code, result.stderr) == (
        2,
        (
            "Error: app 'plain' has no limits; add Throttle(app), or name another app: "
            "celery -A APP throttle ...\n"
        ),
    )


def test_an_unknown_command() -> None:
    assert CliRunner().invoke(throttle, ["list"]).exit_code == 2


def test_each_command_has_help() -> None:
    context = click.Context(throttle)
    for name in throttle.list_commands(context):
        command = throttle.get_command(context, name)
        assert command is not None
        assert command.name == name
        # The list of commands has room for a whole sentence.
        assert not command.get_short_help_str(60).endswith("...")


#: Imports the module that Celery imports at each call. Celery has imported click before.
IMPORT = "import sys, time, click; before = {*sys.modules}; began = time.process_time(); "
IMPORT += "import celery_throttle.cli; seconds = time.process_time() - began; "


def test_celery_imports_little() -> None:
    modules = {*run(sys.executable, "-c", IMPORT + "print(*{*sys.modules} - before)").split()}
    foreign = {name for name in modules if not name.startswith("celery_throttle")}
    assert {name.partition(".")[0] for name in foreign} <= sys.stdlib_module_names
    assert modules - foreign == {
        "celery_throttle.cli.shared",
        *("celery_throttle", "celery_throttle.cli", "celery_throttle.errors"),
        "celery_throttle.cli.shared.exit_codes",
    }


def test_celery_help_slows_down_by_20_ms_at_most() -> None:
    seconds = [float(run(sys.executable, "-c", IMPORT + "print(seconds)")) for _ in range(5)]
    assert min(seconds) < 0.02  # other processes may slow some of them down, but not all


@pytest.mark.thorough
def test_the_shell_completes_limits_and_fan_outs(app: Any, redis_url: str) -> None:
    fill(app, 1)

    def complete(command: str, variable: str, *words: str) -> list[str]:
        env = {
            "CELERY_BROKER_URL": redis_url,
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            variable: "bash_complete",
        }
        return run(command, env=env).split()

    url = ("celery-throttle", "--url", redis_url)
    ours = COMMAND, "_CELERY_THROTTLE_COMPLETE"
    assert complete(*ours, *url, "show", "m") == ["plain,mail"]
    assert complete(*ours, *url, "fanout", "show", "n") == ["plain,nightly"]
    assert complete(*ours, "celery-throttle", "undef") == ["plain,undefine"]
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    assert complete(*ours, "celery-throttle", "--url", nowhere, "show", "m") == []
    script = str(Path(sys.executable).with_name("celery"))
    if not Path(script).exists():
        pytest.skip("the script of Celery is installed elsewhere")
    words = ("celery", "-A", "tests.apps.operated", "throttle", "pause", "m")
    assert complete(script, "_CELERY_COMPLETE", *words) == ["plain,mail"]


def test_top_redraws_the_terminal_until_ctrl_c(app: Any, redis_url: str) -> None:
    fill(app, 5)
    command = [COMMAND, "--url", redis_url, "top", "--every", "0.5"]
    process_id, terminal = pty.fork()
    if process_id == 0:
        os.execv(COMMAND, command)  # noqa: S606  # no shell
    shown = b""  # a part of it may end within a character
    deadline = time.monotonic() + 60
    while shown.count(b"granted/s") < 2 and time.monotonic() < deadline:
        shown += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the other end has closed it
        while more := os.read(terminal, 65536):
            shown += more
    output = shown.decode()
    _, status = os.waitpid(process_id, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, output
    assert output.startswith("\x1b[?1049h")
    assert "\x1b[?7l" in output.split("granted/s")[0]  # a narrow terminal cuts lines, wraps none
    assert output.rindex("\x1b[?7h") > output.rindex("granted/s")
    assert output.rstrip().endswith("\x1b[?1049l")
    assert "5 tasks in queue" in output


@pytest.mark.parametrize(("value", "has_colors"), [("1", False), ("", True)])
def test_no_color_counts_unless_it_is_empty(
    redis_url: str, value: str, *, has_colors: bool
) -> None:
    limiter = Limiter(redis_url)
    limiter["mail"].define("1/s")
    limiter.store.close()
    env = {"NO_COLOR": value}
    found = CliRunner().invoke(main, ["--url", redis_url, "ls"], color=True, env=env)
    assert ("\x1b[" in found.stdout) is has_colors, found.output
