from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.simulation.commands import figures, run

SEVEN = "times:5,15,61,70,100,110,140"


def test_the_table_has_a_limit_a_row() -> None:
    limits = ("--limit", "3/m using fixed-window", "--limit", "3/m burst 3")
    code, output = run(SEVEN, *limits)
    title, _, head, *rows, _, note = output.splitlines()
    assert code == 0
    assert title == f"{SEVEN}: 7 arrivals in 135 s; a refused one is gone"
    assert head.split()[:4] == ["limit", "admitted", "refused", "fullest"]
    assert [row.split("  ")[0] for row in rows] == ["3/m using fixed-window", "3/m burst 3"]
    assert rows[0].split()[3:] == [
        *("6", "1", "3", "in", "60", "s"),
        *("0.000", "0.000", "0.000", "0.000"),
    ]
    assert note == "waits in seconds"


def test_json_holds_the_same_figures() -> None:
    options = ("--mode", "wait", "--limit", "100/s burst 20", "--limit", "10 at once")
    found = figures("fanout:200", *options, "--duration", "100ms")
    about, slots = found.pop("limits")
    assert found == {
        "trace": "fanout:200",
        "mode": "wait",
        "arrivals": 200,
        "span_s": 0.0,
    }
    assert about == {
        "limit": "100/s burst 20",
        "admitted": 200,
        "refused": 0,
        "fullest_window": 119,
        "window_s": 1.0,
        "wait_p50_s": 0.8,
        "wait_p95_s": 1.7,
        "wait_p99_s": 1.78,
        "wait_max_s": 1.8,
    }
    assert (slots["fullest_window"], slots["window_s"], slots["wait_max_s"]) == (10, None, 1.9)


def test_each_arrival_is_shown() -> None:
    code, output = run("times:12:00,12:00", "--limit", "1/m", "--limit", "1/h", "--each")
    assert code == 0
    assert output.splitlines() == [
        "arrival               1/m                 1/h",
        "12:00            admitted            admitted",
        "12:00    refused for 60 s  refused for 3600 s",
    ]
    found = figures("times:1,1", "--limit", "1/m", "--each")
    assert found["times_us"] == [1_000_000, 1_000_000]
    assert found["limits"][0]["starts_us"] == [1_000_000, None]


def test_each_arrival_shows_its_cost_where_costs_differ() -> None:
    _, output = run("-", "--limit", "9/m using sliding-log", "--each", text="5,1.5\n6\n")
    assert [line.split("  ")[0] for line in output.splitlines()[1:]] == ["5 cost 1.5", "6 cost 1"]


def test_a_trace_comes_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("5\n15\n")
    assert figures(str(path), "--limit", "1/m")["limits"][0]["refused"] == 1
    assert figures("-", "--limit", "1/m", text="5\n65\n")["limits"][0]["refused"] == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["fanout:5"], "Missing option '--limit'"),
        (["fanout:5", "--limit", "10"], "'10' is not a rate"),
        (["fanout:5", "--limit", "1/s", "--mode", "queue"], "'drop', 'wait'"),
        (["fanout:5", "--limit", "5 at once"], "'5 at once' has slots"),
        (["fanout:5", "--limit", "5 at once", "--duration", "1"], "'1' is no duration"),
        (["fanout:x", "--limit", "1/s"], "count 'x' is not allowed"),
        (["burst:5", "--limit", "1/s"], "'burst:5' is neither a file nor a trace; allowed: 'st"),
        (["/no/such/file.csv", "--limit", "1/s"], "is neither a file nor a trace"),
        (["fanout:5,cost=2", "--limit", "1/s"], "cost 2 can never pass"),
        (["fanout:5", "--limit", "1/s", "--plot", "x.jpg"], "a name that ends in .svg, .png, .pdf"),
        (["fanout:5", "--limit", "1/s", "--plot", "/no/such/x.svg"], "cannot write /no/such/x.svg"),
    ],
)
def test_wrong_options_are_told(options: list[str], says: str) -> None:
    code, output = run(*options)
    assert code == 2
    assert says in " ".join(output.split())
    assert "Traceback" not in output


def test_the_help_tells_the_forms_of_a_trace() -> None:
    _, output = run("--help")
    for form in ("steady:10/s,60s", "random:10/s,60s,seed=1", "edges:100@60s,300s", "fanout:1000"):
        assert form in output


def without(package: str, *options: str) -> tuple[int, str]:
    """Return exit code and errors of the command without a package."""
    main = "from celery_throttle.cli import main\nmain(sys.argv[1:])"
    ended = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import sys\nsys.modules[{package!r}] = None\n{main}",
            *("simulate", "fanout:3", "--limit", "1/s", *options),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return ended.returncode, ended.stderr


def test_a_missing_extra_says_how_to_install_it(tmp_path: Path) -> None:
    code, errors = without("matplotlib", "--plot", str(tmp_path / "x.svg"))
    install = 'pip install "celery-global-throttle[plot]"'
    assert code == 1
    assert errors == f"Error: a plot needs matplotlib, which is not installed: {install}\n"
    assert without("matplotlib") == (0, "")
