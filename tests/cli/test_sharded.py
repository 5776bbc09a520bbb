"""Each command that shows limits, with several shards, of which one may be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.shards import Scene

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

#: What a command says on standard error of the shard that is lost.
LOST = "shard erp cannot be read: "


@pytest.fixture
def shell(scene: Scene) -> Shell:
    return Shell(scene.app, "celery")


def waiting(shell: Shell, command: str = "ls") -> dict[str, int]:
    return {one["name"]: one["waiting"] for one in shell.json(command)["limits"]}


@pytest.mark.parametrize("command", ["ls", "top"])
def test_all_limits_are_listed(scene: Scene, shell: Shell, command: str) -> None:
    assert waiting(shell, command) == {"erp": 4, "mail": 4, "tenant": 4}
    with scene.lost():
        found = shell.json(command)
        assert {one["name"] for one in found["limits"]} == {"mail", "tenant"}
        assert found["lost_shards"] == ["erp"]
        assert "Shards that cannot be read: erp" in shell.run(command)


def test_a_limit_is_shown_from_its_shards(scene: Scene, shell: Shell) -> None:
    assert shell.json("show", "erp")["waiting"] == 4
    tenant = shell.json("show", "tenant")
    assert (tenant["waiting"], len(tenant["top_keys"]), len(tenant["recent"])) == (4, 4, 30)
    assert shell.json("show", "tenant", "2")["waiting"] == 1
    with scene.lost():
        assert shell.json("show", "mail")["waiting"] == 4
        shell.run("show", "erp", code=3)


@pytest.mark.parametrize("limit", ["mail", "erp", "tenant"])
def test_a_task_is_found_in_any_shard(shell: Shell, limit: str) -> None:
    found = shell.json("why", tasks_at(shell, limit)[-1]["task_id"])
    assert (found["location"], found["queue"]) == ("line", "celery")
    assert limit in found["blocked_by"].values()


def tasks_at(shell: Shell, *words: str) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = shell.json("waiting", *words)["tasks"]
    return tasks


def test_a_task_may_be_in_the_lost_shard(scene: Scene, shell: Shell) -> None:
    mail, erp = tasks_at(shell, "mail")[0], tasks_at(shell, "erp")[0]
    with scene.lost():
        assert shell.json("why", mail["task_id"])["location"] == "line"
        assert "shard 'erp': the server at" in shell.run("why", erp["task_id"], code=3)


def test_waiting_tasks_of_all_shards_are_listed_page_by_page(shell: Shell) -> None:
    assert len(tasks_at(shell, "erp")) == 4
    found, first = list[str](), 0
    while True:
        page = shell.json("waiting", "tenant", "--first", str(first), "--most", "3")
        assert page["waiting"] == 4
        found += [one["task_id"] for one in page["tasks"]]
        if page["next"] is None:
            break
        first = page["next"]
    assert len(found) == len({*found}) == 4


def test_previews_and_changes(scene: Scene, shell: Shell) -> None:
    for name in Scene.LIMITS:
        pause = shell.json("pause", name, "--for", "1h")
        assert (pause["preview"]["waiting"], pause["preview"]["before"]["waiting"]) == (4, 4)
        assert shell.json("resume", name)["was_paused"]
        define = shell.json("define", name, "1/d burst 1")
        assert define["preview"]["waiting"] == 4
        undefine = shell.json("undefine", name, "--yes")
        assert (undefine["clauses"], undefine["preview"]["waiting"]) == (["1/h"], 4)
    changes = shell.json("history", "--most", "100")["changes"]
    for action in ("pause", "resume", "define", "undefine"):
        assert {one["limit"] for one in changes if one["action"] == action} == {*Scene.LIMITS}
    assert [one["at"] for one in changes] == sorted((one["at"] for one in changes), reverse=True)
    with scene.lost():
        left = shell.json("history", "--most", "100")["changes"]
        assert {one["limit"] for one in left} == {"mail", "tenant"}


def test_all_limits_are_paused_with_one_preview(shell: Shell) -> None:
    pause = shell.json("pause", "--all", "--for", "1h")
    assert (pause["limits"], pause["preview"]["waiting"]) == (["erp", "mail", "tenant"], 12)
    assert shell.json("resume", "--all")["preview"]["waiting"] == 12


def test_reports_cover_all_shards_of_a_limit(shell: Shell) -> None:
    def kept(totals: dict[str, float]) -> float:  # a start that was late gives its unit back
        return totals["granted"] - totals["refunded"]

    assert kept(shell.json("report", "erp", "--since", "10m")["totals"]) == 1
    report = shell.json("report", "tenant", "--since", "10m")
    assert (kept(report["totals"]), report["totals"]["parked"]) == (4, 4)
    assert len(report["top_keys"]) == 3


def test_rules_of_all_shards(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[limits]\nmail = "2/d burst 1"\nerp = "2/d burst 1"\ntenant = "2/d burst 1"\n')
    found = shell.json("diff", str(file))
    assert {name: one["waiting"] for name, one in found["previews"].items()} == dict.fromkeys(
        Scene.LIMITS, 4
    )
    shell.run("apply", str(file), "--yes")
    assert shell.json("dump")["limits"] == {name: ["2/d"] for name in Scene.LIMITS}
    assert not shell.json("diff", str(file))["changes"]
    file.write_text("[limits]\n")
    shell.run("apply", str(file), "--yes")


def test_workers_and_fan_outs(scene: Scene, shell: Shell) -> None:
    (worker,) = shell.json("workers")["workers"]
    assert worker["live"]
    assert shell.json("fanouts") == {"fanouts": []}
    with scene.lost():
        (worker,) = shell.json("workers")["workers"]
        assert worker["live"]


@pytest.mark.parametrize(
    "words", [("history",), ("workers",), ("fanouts",), ("dump",), ("waiting", "mail")]
)
def test_a_lost_shard_is_named(scene: Scene, shell: Shell, words: tuple[str, ...]) -> None:
    with scene.lost():
        names_shard = LOST in shell.errors(*words)
        assert names_shard == (words[0] != "waiting")  # which is of another shard
