from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.simulation.commands import run

TRACE = ("random:20/s,10s,seed=3", "--limit", "10/s", "--limit", "10/s using sliding-log")


def texts(svg: Path) -> list[str]:
    """Return the texts in a plot."""
    root = ET.parse(svg).getroot()  # noqa: S314  # of our own making
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


def draw(path: Path, *options: str) -> Path:
    code, output = run(*options, "--plot", str(path))
    assert code == 0, output
    return path


def test_a_picture_has_a_lane_a_limit(tmp_path: Path) -> None:
    slots = ("--limit", "5 at once", "--duration", "1s")
    found = texts(draw(tmp_path / "x.svg", *TRACE, *slots))
    assert {"10/s", "10/s using sliding-log", "5 at once"} < set(found)
    assert any(text.endswith("refused, at most 10 in 1 s") for text in found)
    assert any(text.endswith("refused, at most 5 at once") for text in found)
    assert any(text.startswith("seconds; a bar is 0.1 s") for text in found)


def test_the_same_simulation_is_the_same_file(tmp_path: Path) -> None:
    for ending in ("svg", "png"):
        one, other = (draw(tmp_path / f"{name}.{ending}", *TRACE) for name in "ab")
        assert one.read_bytes() == other.read_bytes()
    svg = (tmp_path / "a.svg").read_text()
    assert "matplotlib.org" not in svg.partition("<defs>")[0].partition("<svg")[2]
    assert "<dc:date>" not in svg


def test_an_ending_decides_the_format(tmp_path: Path) -> None:
    assert draw(tmp_path / "x.PNG", *TRACE).read_bytes().startswith(b"\x89PNG\r\n")
    assert draw(tmp_path / "x.svg", *TRACE).read_text().startswith("<?xml")
    assert draw(tmp_path / "x.pdf", *TRACE).read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    "trace",
    [
        "fanout:1",
        "times:2026-03-08T07:59Z,2026-03-09T07:00Z",
        "times:12:00,12:01:30",
        "times:0,31000000",
        "times:0,0.000001",
        "fanout:5,cost=0.5",
        "steady:1/w,12month",
    ],
)
def test_any_span_of_time_can_be_drawn(tmp_path: Path, trace: str) -> None:
    found = texts(draw(tmp_path / "x.svg", trace, "--limit", "3/m using fixed-window"))
    assert len([text for text in found if text.replace(".", "").isdigit()]) >= 3


def test_a_trace_that_begins_late_has_an_axis_of_its_own(tmp_path: Path) -> None:
    found = texts(draw(tmp_path / "x.svg", "times:12:00:05,12:00:15", "--limit", "3/m"))
    assert any(text.startswith("seconds since 12:00:05; ") for text in found)
