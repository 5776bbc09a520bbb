"""`report`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Shell


def test_it_ends_with_advice(shell: Shell) -> None:
    day = shell.app.throttle["day"]
    assert day.try_acquire(100)
    assert not day.try_acquire()
    output = shell.run("report", "day", "--since", "10m")
    assert "limit day: 100/d burst 100" in output
    assert "1: 1 by the limit" in output
    assert "since it came into force, or was first recorded" in output
    assert output.splitlines()[-1].startswith("Unknown. It was recorded for ")
    found = shell.json("report", "day")
    assert (found["totals"]["granted"], found["totals"]["refused"]["limit"]) == (100, 1)


def test_keys_and_fan_outs_are_shown_as_people_write_them(shell: Shell) -> None:
    send = shell.app.tasks["send"]
    shell.app.throttle.fan_out([send.s("Zoë & co", number) for number in range(3)], "März 7")
    report = shell.run("report", "mail")
    assert "Zoë & co 3\n" in report
    assert "The key with the most waiting tasks is 'Zoë & co', with 3 tasks." in report
    assert "März 7\n" in shell.run("show", "mail")


def test_nothing_to_report(shell: Shell) -> None:
    assert "Nothing was counted" in shell.run("report", "api")
    assert "from one second to seven days" in shell.run("report", "api", "--since", "8d", code=2)
    shell.run("report", "nope", code=4)


def test_a_plot(shell: Shell, tmp_path: Path) -> None:
    shell.app.throttle["day"].try_acquire(3)
    shell.run("report", "day", "--plot", str(tmp_path / "day.svg"))
    assert "granted" in (tmp_path / "day.svg").read_text()
    error = shell.run("report", "day", "--plot", str(tmp_path / "day.txt"), code=2)
    assert "allowed: a name that ends in .svg, .png, .pdf" in error
