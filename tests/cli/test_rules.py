"""`check`, `diff`, `apply` and `dump`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Route
from tests.apps.operated import add_worker
from tests.cli.conftest import Shell, fill


def test_check_reports_every_mistake_with_its_line(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\napi = "3/x"\n[weights]\nmail = 0\n')
    lines = shell.run("check", str(file), code=1).splitlines()
    assert lines[0].startswith(f"Error: {file}:2: limit 'api': unknown unit 'x'")
    assert lines[1].startswith(f"{file}:4: ")
    mistakes = shell.json("check", str(file), code=1)["mistakes"]
    assert [mistake["line"] for mistake in mistakes] == [2, 4]
    file.write_text('[limits]\napi = "3/s"\n"mail:t1" = "9/m"\n')
    assert shell.run("check", str(file)) == f"{file}: no mistakes; 2 limits, 0 weights, 0 routes.\n"
    assert shell.json("check", str(file)) == {"file": str(file), "mistakes": []}
    assert "does not exist" in shell.run("check", str(tmp_path / "nothing"), code=2)


def test_an_app_checks_against_its_code(app: Any, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[weights]\nnobody = 2\n")
    assert "nobody" in Shell(app, "celery").run("check", str(file), code=1)
    Shell(app, "celery-throttle").run("check", str(file))


@pytest.mark.parametrize("name", ["check", "diff", "apply"])
def test_routes_are_checked_against_the_tasks_of_the_app(
    app: Any, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[routes]\nplain = "mail:{tenant}"\n')
    error = Shell(app, "celery").run(name, str(file), code=1)
    assert error.startswith(f"Error: {file}: task 'plain' has no argument 'tenant'; allowed: ")
    assert "plain" not in Shell(app, "celery").run("dump")
    Shell(app, "celery-throttle").run("check", str(file))


def test_dump_prints_what_is_in_force(shell: Shell) -> None:
    shell.run("define", "mail", "5/m", "100/h", "--key", "São Paulo", "--weight", "3")
    shell.run("define", "api", "--weight", "2")
    rules = read_rules(shell.run("dump"), "dump")
    key = LimitRef("mail", "S%C3%A3o%20Paulo")
    assert [str(limit) for limit in rules.limits[key]] == ["5/m", "100/h"]
    assert rules.weights == {LimitRef("api", None): 2, key: 3}
    routes = {"send": Route(("mail:{tenant}", "api"))} if shell.entry == "celery" else {}
    assert rules.routes == routes
    found = shell.json("dump")
    assert found["routes"] == {
        task: {"limits": [*route.limits], "cost": None} for task, route in routes.items()
    }
    assert found["limits"]["slots"] == ["3 at once"]
    assert found["weights"] == {"api": 2, "mail:S%C3%A3o%20Paulo": 3}


def test_diff_and_apply(shell: Shell, tmp_path: Path) -> None:
    add_worker(shell.app)
    fill(shell.app, 40)
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\nmail = "40/m"\n[weights]\nmail = 2\n')
    found = shell.json("diff", str(file))
    assert [change["text"] for change in found["changes"]] == [
        'limit mail added: "40/m"',
        "weight mail added: 2",
    ]
    preview = found["previews"]["mail"]
    assert preview["waiting"] == 40
    assert preview["after"]["earliest"] < preview["before"]["earliest"]
    assert "the last would start a" in shell.run("diff", str(file))
    assert shell.json("ls")["rules"] is None
    assert shell.run("apply", str(file), "--by", "ann", "--yes").endswith("is in force.\n")
    rules = shell.json("ls")["rules"]
    assert (rules["source"], rules["author"]["by"]) == (str(file), "ann")
    [line] = [row for row in shell.run("ls").splitlines() if row.startswith("Rules file")]
    assert line.startswith(f"Rules file {file} in force since")
    assert line.endswith(" by ann")  # a reason that only names the file again is left out
    assert "changes nothing" in shell.run("diff", str(file))
    file.write_text("# No rules.\n")
    assert 'limit mail removed: "40/m"' in shell.run("diff", str(file))
    assert "give --yes" in shell.run("apply", str(file), code=1)
    file.write_text("[limits]\nmail = 3\n")
    assert f"{file}:2: " in shell.run("apply", str(file), "--yes", code=1)


def test_a_limit_defined_at_run_time_has_no_preview(shell: Shell, tmp_path: Path) -> None:
    fill(shell.app, 40)
    shell.run("define", "mail", "1/m")
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\nmail = "40/m"\n')
    assert shell.json("diff", str(file))["previews"] == {}
