"""`pause`, `resume`, `define`, `undefine` and `reset`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from celery_throttle.cli.shared import console
from tests.apps.operated import add_worker
from tests.cli.conftest import ENTRIES, Shell, fill


def test_a_pause_of_one_shell_appears_in_another(app: Any) -> None:
    one, other = (Shell(app, entry) for entry in ENTRIES)
    one.run("pause", "api", "--reason", "incident 12", "--by", "ann@web")
    assert "limit api is paused until it is resumed, by ann@web: incident 12" in other.run("ls")
    (pause,) = next(one for one in other.json("ls")["limits"] if one["name"] == "api")["pauses"]
    assert (pause["limit"], pause["key"], pause["seconds"], pause["until"]) == (
        *("api", None),
        *(None, None),
    )
    assert pause["author"] == {"by": "ann@web", "reason": "incident 12"}
    other.run("resume", "api")
    assert "paused" not in one.run("ls")


def test_resume_leaves_exactly_the_units_that_were_left(shell: Shell) -> None:
    day = shell.app.throttle["day"]
    day.try_acquire(90)
    shell.run("pause", "day")
    assert day.acquire_up_to(100).granted == 0
    assert shell.run("resume", "day") == "Resumed limit day.\n"
    assert day.acquire_up_to(100).granted == 10
    assert shell.run("resume", "day") == "Limit day was not paused.\n"


def test_pauses_of_a_limit_and_of_a_key_are_independent(shell: Shell) -> None:
    fill(shell.app, 10, tenants=2)
    shell.run("pause", "mail", "t1", "--reason", "spam")
    shell.run("pause", "mail", "--for", "1h")
    assert "paused keys: 1" in shell.run("ls")
    shell.run("resume", "mail")
    assert "limit mail of key t1 is paused until it is resumed" in shell.run("show", "mail", "t1")
    fields = shell.json("resume", "mail", "t1")
    assert fields.pop("preview")["waiting"] == 5
    assert fields == {"limit": "mail", "key": "t1", "was_paused": True}


def test_resume_says_how_much_earlier_the_tasks_start(shell: Shell) -> None:
    add_worker(shell.app)
    fill(shell.app, 10)
    shell.run("pause", "mail", "--for", "1h")
    text, resumed = shell.run("resume", "mail").splitlines()
    assert re.fullmatch(
        r"10 tasks wait; the last would start at .*, (59 min \d\d s|1 h) earlier\.", text
    )
    assert resumed == "Resumed limit mail."
    shell.run("pause", "mail")
    text, resumed = shell.run("resume", "mail").splitlines()
    assert text.endswith("instead of when it is resumed.")
    assert shell.run("resume", "mail") == "Limit mail was not paused.\n"


def test_all_limits(shell: Shell) -> None:
    fill(shell.app, 3)
    names = ["api", "day", "mail", "slots"]
    output = shell.run("pause", "--all", "--reason", "night")
    assert output.splitlines() == [
        "3 tasks wait; none starts until it is resumed.",
        f"Paused 4 limits: {', '.join(names)}.",
    ]
    assert shell.json("resume", "--all")["limits"] == names
    assert shell.json("resume", "--all")["limits"] == []
    assert (
        shell.run("pause", code=2).splitlines()[-1].endswith("give the name of a limit, or --all")
    )
    assert "--all" in shell.run("pause", "api", "--all", code=2)


def test_a_pause_shows_what_follows(shell: Shell) -> None:
    add_worker(shell.app)
    fill(shell.app, 120, tenants=3)
    first, second = shell.run("pause", "mail", "--for", "10m").splitlines()
    clock = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
    assert re.fullmatch(
        rf"120 tasks wait; the last would start at {clock} \(\w+\)"
        rf"(, (9|10) min .*later| instead of after {clock})\.",
        first,
    )
    assert second in ("Paused limit mail for 10 min.", "Paused limit mail for 9 min 59 s.")
    preview = shell.json("pause", "mail", "--for", "20m")["preview"]
    before, after = (
        datetime.fromisoformat(preview[one]["earliest"].replace("Z", "+00:00"))
        for one in ("before", "after")
    )
    assert (after - before).total_seconds() == pytest.approx(600, abs=60)


def test_a_pause_is_not_shortened(shell: Shell) -> None:
    shell.run("pause", "mail", "--reason", "spam")
    output = shell.run("pause", "mail", "--for", "10m")
    assert output.endswith(
        "Limit mail stays paused until it is resumed, as a pause in force is never shortened.\n"
    )
    assert shell.json("pause", "mail", "--for", "10m")["seconds"] is None
    assert len(shell.app.throttle.changes()) == 1


def test_define_and_undefine(shell: Shell) -> None:
    add_worker(shell.app)
    fill(shell.app, 120, tenants=3)
    output = shell.run("define", "mail", "40/m", "1000/h", "--for", "1h", "--reason", "sale")
    assert "120 tasks wait; the last would start a" in output  # at, or after
    assert "Defined limit mail, for 1 h: 40/m; 1000/h." in output
    assert re.search(r"defined at run time at .*, until .*, by .*: sale", shell.run("ls"))
    refusal = shell.run("undefine", "mail", code=1)
    assert refusal == ("Error: this needs an answer, and there is no terminal to ask; give --yes\n")
    assert shell.run("undefine", "mail", "--yes") == "Undefined limit mail: 20/m from now on.\n"
    assert shell.json("show", "mail")["clauses"] == ["20/m"]


def test_a_key_and_a_weight(shell: Shell) -> None:
    fill(shell.app, 4, tenants=2)
    shell.run("define", "mail", "5/m", "--key", "t1", "--weight", "3")
    status = shell.json("show", "mail", "t1")
    assert (status["clauses"], status["weight"]) == (["5/m"], 3)
    assert "keys with their own limit or weight: 1" in shell.run("ls")
    shell.run("define", "mail", "--key", "t1", "--weight", "4")
    assert shell.json("show", "mail", "t1")["weight"] == 4
    found = shell.json("undefine", "mail", "--key", "t1", "--yes")
    assert found["clauses"] == ["20/m"]


def test_wrong_definitions(shell: Shell) -> None:
    assert "unknown unit 'x'" in shell.run("define", "api", "5/x", code=2)
    assert "give a limit" in shell.run("define", "api", code=2)
    assert "slots" in shell.run("define", "api", "5 at once", code=2)
    assert "500 characters" in shell.run("pause", "api", "--reason", "x" * 501, code=2)
    assert "'nope' is not defined" in shell.run("undefine", "nope", "--yes", code=4)
    assert "cannot name a limit" in shell.run("show", "a b", code=2)
    assert "is empty" in shell.run("show", "api", "a::b", code=2)


def test_the_words_of_a_limit_need_quotes(shell: Shell) -> None:
    for words in (("20/s", "burst", "4"), ("3", "at", "once")):
        error = shell.run("define", "api", *words, code=2)
        assert f'a limit with spaces needs quotes: "{" ".join(words)}"' in error


def test_a_limit_that_only_define_knows(shell: Shell) -> None:
    error = shell.run("define", "extra", "5/s", code=4)
    assert "limit 'extra' is not defined; this process knows: 'api', 'day', 'mail'" in error
    assert error.endswith("; for a new limit, add --new\n")
    assert "write 'mail'; for a new limit" in shell.run("define", "mial", "5/s", code=4)
    assert not {"extra", "mial"} & {limit["name"] for limit in shell.json("ls")["limits"]}
    shell.run("define", "extra", "5/s", "--new")
    assert shell.json("undefine", "extra", "--yes")["clauses"] == []


def test_a_name_that_nobody_defines_changes_nothing(shell: Shell) -> None:
    for words in (("pause",), ("resume",), ("reset", "--yes"), ("undefine", "--yes")):
        assert shell.run(words[0], "apo", *words[1:], code=4).endswith("write 'api'\n")
    assert shell.json("history")["changes"] == []


def test_undefine_without_a_definition_says_so(shell: Shell) -> None:
    text = "Limit mail has no definition by define: nothing has changed.\n"
    assert shell.run("undefine", "mail") == text
    shell.run("define", "mail", "--weight", "3")
    assert shell.run("undefine", "mail", "--yes") != text
    assert shell.json("show", "mail")["weight"] == 1


def test_a_limit_and_its_key_may_be_one_word(shell: Shell) -> None:
    shell.run("pause", "mail:t1:eu", "--for", "1h30m")
    (pause,) = shell.json("show", "mail", "t1:eu")["pauses"]
    assert (pause["key"], 5390 < pause["seconds"] <= 5400) == ("t1:eu", True)
    assert shell.json("show", "mail:t1:eu")["key"] == "t1:eu"
    shell.run("define", "mail:t1", "5/m")
    assert shell.json("show", "mail:t1")["clauses"] == ["5/m"]
    assert "give the key once" in shell.run("pause", "mail:t1", "t2", code=2)


def test_reset_forgets_what_was_used(shell: Shell) -> None:
    day = shell.app.throttle["day"]
    day.try_acquire(90)
    assert "--yes" in shell.run("reset", "day", code=1)
    assert day.peek().remaining == 10
    assert shell.run("reset", "day", "--yes") == "Reset limit day.\n"
    assert day.peek().remaining == 100


@pytest.mark.parametrize(("typed", "units"), [("n\n", 10), ("y\n", 100)])
def test_a_question_shows_what_follows(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, units: int
) -> None:
    monkeypatch.setattr(console, "_can_ask", lambda: True)
    day = shell.app.throttle["day"]
    day.try_acquire(90)
    code = 0 if typed == "y\n" else 1
    output = shell.run("reset", "day", code=code, typed=typed)
    if code:
        assert "No task waits for it." in output
        assert "Reset it? [y/N]" in output
        assert output.endswith("Error: nothing was changed\n")
    assert day.peek().remaining == units
