"""`ls`, `show`, `top`, `why`, `waiting` and `history`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle.cli.shared.console import Row, Table
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from tests.apps.operated import add_worker
from tests.cli.conftest import Shell, fill


def row(output: str, name: str) -> list[str]:
    """Return the cells of a row of a table."""
    line = next(line for line in output.splitlines() if line.startswith(f"{name} "))
    return re.split(r"  +", line)


def test_ls_shows_what_is_in_force_and_waits(shell: Shell) -> None:
    fill(shell.app, 120, tenants=3)
    output = shell.run("ls")
    assert row(output, "mail")[:5] == ["mail", "20/m", "code", "by key", "120"]
    assert row(output, "mail")[-1] == "no worker"
    assert row(output, "day") == ["day", "100/d burst 100", "code", "0/100", "0", "0", "-", "-"]
    assert "0 live workers" in output
    assert "120 tasks in queue" in output
    found = shell.json("ls")
    assert {limit["name"]: limit["waiting"] for limit in found["limits"]} == {
        "api": 0,
        "day": 0,
        "mail": 120,
        "slots": 0,
    }
    assert found["stranded"][0]["why"] == "queue"
    add_worker(shell.app)
    assert re.fullmatch(r"(after )?([\d-]+ )?\d\d:\d\d:\d\d", row(shell.run("ls"), "mail")[-1])


def test_an_app_shows_its_queues_without_the_broker(app_shell: Shell) -> None:
    fill(app_shell.app, 2)
    assert "2 tasks in queue celery:" in app_shell.run("ls")
    assert app_shell.json("ls")["stranded"][0]["queue"] == "celery"
    assert app_shell.json("show", "mail")["queues"][0]["name"] == "celery"
    assert app_shell.json("why", "id0")["queue"] == "celery"
    assert app_shell.json("waiting", "mail")["tasks"][0]["queue"] == "celery"


def test_ls_fits_a_terminal_of_80_columns(shell: Shell) -> None:
    fill(shell.app, 120, tenants=3)
    shell.run("pause", "api", "--reason", "the reason may be long, and goes below")
    lines = shell.run("ls").splitlines()
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80


@pytest.mark.parametrize(("width", "cut"), [(None, False), (80, False), (20, True)])
def test_a_table_cuts_one_column(width: int | None, *, cut: bool) -> None:
    table = Table(("limit", ">n"), [Row(("a" * 30, "1,000"), ["a note"])])
    _head, line, note = table.lines(width)
    assert len(line) == (20 if cut else 37)
    assert ("…" in line) == cut
    assert (line[-5:], note.strip("\x1b[0m2 ")) == ("1,000", "a note")


def test_show(shell: Shell) -> None:
    fill(shell.app, 120, tenants=3)
    shell.app.throttle["day"].try_acquire(90)
    output = shell.run("show", "mail")
    assert "120 tasks of 3 keys" in output
    assert re.search(r"top keys +t\d 40, t\d 40, t\d 40", output)
    assert "fan-outs" in output
    used = r"(90|89\.9\d*) of 100 \(100/d burst 100\)"  # a second gives 0.001 of a unit back
    assert re.search(used, shell.run("show", "day"))
    of_key = shell.run("show", "mail", "t1")
    assert "40 tasks; the oldest for" in of_key
    assert re.search(r"in total \(all keys\) +120 tasks parked", of_key)
    assert shell.json("show", "mail")["top_keys"][0]["waiting"] == 40
    assert "paused keys" not in output
    shell.app.throttle["mail", "t1"].pause(None)
    assert re.search(r"paused keys +t1 until resumed\n", shell.run("show", "mail"))
    assert shell.json("show", "mail")["top_paused_keys"] == [{"key": "t1", "until": None}]


def test_a_key_is_written_as_people_write_it(shell: Shell) -> None:
    app = shell.app
    signature = app.tasks["send"].s("São Paulo", 1).set(task_id="one")
    app.throttle.fan_out([signature], "one")
    assert "1 task" in shell.run("show", "mail", "São Paulo")
    assert "São Paulo 1" in shell.run("show", "mail")
    assert "São Paulo" in shell.run("waiting", "mail", "S%C3%A3o%20Paulo")
    assert "limit mail of key São Paulo" in shell.run("why", "one")


def test_show_a_key_of_which_nothing_is_stored(shell: Shell) -> None:
    text = "Nothing is stored of key t9"
    assert text in shell.run("show", "mail", "t9")
    shell.app.throttle["mail", "t9"].try_acquire()
    assert text not in shell.run("show", "mail", "t9")
    assert text not in shell.run("show", "mail")


def test_top_without_a_terminal_shows_the_limits_once(shell: Shell) -> None:
    fill(shell.app, 5)
    assert shell.run("top").splitlines()[1].startswith("mail ")
    assert shell.json("top")["limits"][0]["name"] == "mail"


def test_why_says_where_a_task_waits(shell: Shell) -> None:
    add_worker(shell.app)
    fill(shell.app, 120, tenants=3)
    shell.run("pause", "mail", "--for", "10m", "--reason", "incident 12", "--by", "ann@web")
    first, *rest = shell.run("why", "id7").splitlines()
    assert first.startswith("Task id7 (send) waits in a line of queue ")
    assert ", 3rd of 40, at limit mail of key t1, for " in first
    assert rest[0] == "It needs limit mail of key t1 and limit api."
    assert re.fullmatch(r"Limit mail is paused until [\d: -]+, by ann@web: incident 12\.", rest[1])
    assert re.fullmatch(r"It is expected to start in (9|10) min( \d+ s)?\.", rest[2])
    found = shell.json("why", "id7")
    assert (found["position"], found["line_tasks"], found["state"]) == (3, 40, None)
    assert found["limits"][0] == {"limit": "mail", "key": "t1", "cost": 1.0}


def test_why_of_an_unknown_task(shell: Shell) -> None:
    output = shell.run("why", "nobody", code=4)
    assert "Task nobody is unknown here." in output
    assert "inspect query_task" in output
    assert max(map(len, output.splitlines())) <= 100
    assert shell.json("why", "nobody", code=4)["location"] == "unknown"


def test_why_shows_the_state_of_the_result_backend(app_shell: Shell) -> None:
    app_shell.app.backend.store_result("ended", 1, "SUCCESS")
    found = app_shell.run("why", "ended")
    assert found == (
        "Task ended does not wait in a line. Its state in the result backend is SUCCESS.\n"
    )
    assert app_shell.json("why", "ended")["state"] == "SUCCESS"


def test_waiting_goes_page_by_page(shell: Shell) -> None:
    fill(shell.app, 120, tenants=3)
    ids, first = [], 0
    while first is not None:
        page = shell.json("waiting", "mail", "--first", str(first), "--most", "50")
        ids += [task["task_id"] for task in page["tasks"]]
        first = page["next"]
    assert sorted(ids) == sorted(f"id{n}" for n in range(120))
    assert "Tasks 1 to 2 of 40; the next with --first 2" in shell.run(
        *("waiting", "mail", "t1", "--most", "2")
    )
    assert "0 tasks" in shell.run("waiting", "api")


def test_waiting_of_more_keys_than_a_call_reads(app: Any) -> None:
    fill(app, 4500, tenants=4500)
    shell, ids = Shell(app, "celery"), set()
    for first in range(0, 4500, 900):
        page = shell.json("waiting", "mail", "--first", str(first), "--most", "900")
        ids |= {task["task_id"] for task in page["tasks"]}
    assert len(ids) == 4500


def test_history(shell: Shell) -> None:
    shell.run("define", "day", "90/day burst 90", "--reason", "fewer", "--by", "ann")
    shell.run("pause", "day", "--for", "1h")
    output = shell.run("history").splitlines()
    assert re.split(r"  +", output[1])[1:5] == ["day", "-", "pause", "1 h"]
    assert re.split(r"  +", output[2])[3:5] == ["define", "100/d burst 100 -> 90/d burst 90"]
    assert output[3].strip() == "fewer"
    changes = shell.json("history")["changes"]
    assert changes[1]["author"] == {"by": "ann", "reason": "fewer"}
    before = shell.json("history", "--before", changes[0]["id"])["changes"]
    assert [change["id"] for change in before] == [change["id"] for change in changes[1:]]
    assert shell.run("history", "--most", "1", "--before", changes[-1]["id"]) == "No changes.\n"


def test_history_before_an_id_without_a_number_and_before_none(shell: Shell) -> None:
    shell.app.throttle["api"].learn(Feedback(refused=True))
    (refusal,) = (
        one
        for one in shell.json("history")["changes"]
        if (one["action"], one["limit"]) == ("429", "api")
    )
    milliseconds, _, _ = refusal["id"].partition("-")
    found = shell.json("history", "--before", milliseconds)["changes"]
    assert refusal["id"] not in {one["id"] for one in found}
    assert "'x' is not the ID of a change" in shell.run("history", "--before", "x", code=2)


def test_a_reason_that_cannot_be_encoded_is_escaped(shell: Shell) -> None:
    reason = b"odd \xff\xe2\x82\xac".decode("utf-8", "surrogateescape")
    shell.run("pause", "day", "--reason", reason)
    assert shell.json("history")["changes"][0]["author"]["reason"] == reason
    assert shell.run("history", "--json").isascii()
    assert r"odd \udcff€" in shell.run("history")


def test_texts_of_others_do_not_control_the_terminal(shell: Shell) -> None:
    fill(shell.app, 1)
    shell.run("pause", "mail", "--reason", "clear\x1b[2J")
    for words in (("ls",), ("show", "mail"), ("why", "id0"), ("history",)):
        assert r"clear\x1b[2J" in shell.run(*words)
    table = Table(("task id",), [Row(("clear\x1b[2J\nscreen",))])
    assert [*table.lines(None)][1:] == [r"clear\x1b[2J\nscreen"]


def test_history_of_a_key_says_how_much_earlier_a_pause_has_ended(shell: Shell) -> None:
    shell.run("pause", "mail:t1", "--for", "1h30m")
    shell.run("resume", "mail:t1")
    resumed, paused = (re.split(r"  +", row) for row in shell.run("history").splitlines()[1:3])
    assert resumed[1:4] == ["mail", "t1", "resume"]
    assert re.fullmatch(r"1 h (29|30) min.* before its end", resumed[4])
    assert paused[1:5] == ["mail", "t1", "pause", "1 h 30 min"]


def test_show_has_the_slots_that_an_api_lets_a_limit_use(shell: Shell) -> None:
    limit = shell.app.throttle["slots"]
    limit.define("adaptive 2..50 at once")
    assert "slots in force" not in shell.run("show", "slots")
    limit.learn(Feedback(refused=True))
    assert "0 of 50 (adaptive 2..50 at once); 35 slots in force" in shell.run("show", "slots")
    assert shell.json("show", "slots")["usage"][0]["share"] == 0.7
    assert re.search(r"last 429 +\d\d:\d\d:\d\d\n", shell.run("show", "slots"))


def test_show_has_the_last_429(shell: Shell) -> None:
    throttle = shell.app.throttle
    assert "last 429" not in shell.run("show", "mail")
    answers = {LimitRef("mail", "t1"): Feedback(refused=True)}
    throttle.run_plan(throttle.plans.learn(answers, ("id1", "send")))
    for args in (["mail"], ["mail", "t1"]):
        shown = shell.run("show", *args)
        assert re.search(r"last 429.* \d\d:\d\d:\d\d, key t1, by task id1 \(send\)", shown)
    last = shell.json("show", "mail")["last_api_refusal"]
    assert (last["key"], last["task_id"], last["task"]) == ("t1", "id1", "send")


def test_history_has_the_last_429_of_each_limit_among_the_changes(shell: Shell) -> None:
    throttle = shell.app.throttle
    shell.run("pause", "day", "--for", "1h")
    throttle.run_plan(
        throttle.plans.learn({LimitRef("mail", "t1"): Feedback(refused=True)}, ("id1", "send"))
    )
    throttle["day"].resume()
    throttle["slots"].learn(Feedback(refused=True))
    rows = [re.split(r"  +", row)[1:5] for row in shell.run("history").splitlines()[1:]]
    assert sorted(row[2] for row in rows) == ["429", "429", "pause", "resume"]
    assert ["slots", "-", "429", "-"] in rows
    assert ["mail", "t1", "429", "by task id1 (send)"] in rows
    changes = shell.json("history")["changes"]
    times = [one["at"] for one in changes]
    assert times == sorted(times, reverse=True)
    ids = [one["id"] for one in changes]
    paged = [
        shell.json("history", "--most", "1", *before)["changes"][0]["id"]
        for before in ([], *(["--before", one] for one in ids[:-1]))
    ]
    assert paged == ids


@pytest.mark.parametrize("options", [("top", "--every"), ("shards", "--over")])
@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "x"])
def test_an_interval_is_a_number_of_seconds(
    shell: Shell, options: tuple[str, str], seconds: str
) -> None:
    assert f"Invalid value for '{options[1]}'" in shell.run(*options, seconds, code=2)
