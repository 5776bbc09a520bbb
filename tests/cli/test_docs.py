"""docs/reference/commands.md has every command, exit code, and field of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from celery_throttle.cli import main, throttle
from celery_throttle.cli.shared.exit_codes import ExitCode
from tests.cli.conftest import Shell, fill
from tests.docs import pages

PAGE = pages.read("reference/commands.md")
JSON = PAGE.partition("\n## JSON\n")[2]

#: What the page says of fields: names in backquotes, some with a note in parentheses.
ROWS = {
    name.strip(): fields
    for names, fields in re.findall(r"^\| (.+?) \| (.+) \|$", JSON, re.MULTILINE)
    for name in re.split(r",(?![^(]*\))", names)
}


def fields(row: str) -> set[str]:
    """Return the fields of a row; those of a value that it refers to are included."""
    without_notes = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", ROWS[row]))
    found = {*re.findall(r"`(\w+)`", without_notes)}
    for value in re.findall(r"\*[\w-]+\*", without_notes):
        found |= fields(value)
    return found


def inner(row: str, field: str) -> set[str]:
    """Return the fields of the objects in a field of a row."""
    found = re.search(rf"`{field}` \(([^()]*)\)", ROWS[row])
    assert found, (row, field)
    names = {*re.findall(r"`(\w+)`", found[1])}
    return names or fields(re.findall(r"\*[\w-]+\*", found[1])[0])


def test_every_command_is_on_the_page() -> None:
    context = click.Context(throttle)
    for name in throttle.list_commands(context):
        command = throttle.get_command(context, name)
        if isinstance(command, click.Group):
            assert all(f"| `{name} {one}" in PAGE for one in command.commands)
        else:
            assert f"| `{name}" in PAGE


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield each command, those of `celery-throttle` alone included, with its whole name."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {one}", command.commands[one]) for one in command.commands)
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(every_command()))
def test_the_section_of_a_command_has_its_options(name: str, command: click.Command) -> None:
    section = re.split(rf"^### `{name}`$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0]
    synopsis = section.partition("```text\n")[2].partition("```")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            written = [*parameter.opts, *parameter.secondary_opts]
            assert any(one in synopsis for one in written), written[0]
            common = written[0] in {"--json", "--yes", "--reason", "--by"}
            assert common or f"| `{written[0]}" in section, written[0]
    named = {*re.findall(r"--[a-z-]+", synopsis)}
    known = {one for p in command.params for one in [*p.opts, *p.secondary_opts]}
    assert named <= known


def test_every_exit_code_is_on_the_page() -> None:
    rows = PAGE.partition("## Exit codes")[2].partition("##")[0]
    assert [int(code) for code in re.findall(r"^\| (\d) \|", rows, re.MULTILINE)] == [*ExitCode]


@pytest.fixture
def busy(app_shell: Shell) -> Iterator[Shell]:
    """With tasks, a pause, a slot in use, a fan-out and changes."""
    fill(app_shell.app, 6, tenants=2)
    app_shell.run("pause", "mail", "t1", "--reason", "spam")
    with app_shell.app.throttle["slots"].slot():
        yield app_shell


COMMANDS = {
    "`ls`": ("ls",),
    "`top`": ("top",),
    "`show`": ("show", "mail"),
    "`why`": ("why", "id1"),
    "`waiting`": ("waiting", "mail"),
    "`workers`": ("workers",),
    "`shards`": ("shards",),
    "`history`": ("history",),
    "`fanouts`": ("fanouts",),
    "`fanout show`": ("fanout", "show", "nightly"),
    "`fanout pause`": ("fanout", "pause", "nightly"),
    "`fanout resume`": ("fanout", "resume", "nightly"),
    "`fanout cancel`": ("fanout", "cancel", "nightly", "--yes"),
    "`pause`": ("pause", "mail"),
    "`pause --all`": ("pause", "--all"),
    "`resume`": ("resume", "mail", "t1"),
    "`resume --all`": ("resume", "--all"),
    "`define`": ("define", "mail", "5/s"),
    "`undefine`": ("undefine", "mail", "--yes"),
    "`reset`": ("reset", "mail", "--yes"),
    "`drain`": ("drain", "mail", "--yes"),
    "`move`": ("move", "mail", "--queue", "slow", "--yes"),
    "`drop`": ("drop", "mail", "--yes"),
    "`purge`": ("purge", "--yes"),
    "`report`": ("report", "mail"),
    "`diff`": ("diff", str(Path(__file__).parent / "limits.toml")),
    "`apply`": ("apply", str(Path(__file__).parent / "limits.toml"), "--yes"),
    "`check`": ("check", str(Path(__file__).parent / "limits.toml")),
    "`dump`": ("dump",),
}


def test_the_page_has_the_fields_of_each_command() -> None:
    values = {name for name in ROWS if name.startswith("*")}
    of_commands = {name for name in ROWS if name.strip("`").split()[0] in throttle._modules}
    assert of_commands == {*COMMANDS, "`shards move`"}  # which needs several shards
    assert values == {"*limit*", "*pause*", "*fan-out*"}


@pytest.mark.parametrize("row", COMMANDS)
def test_fields_of_a_command(busy: Shell, row: str) -> None:
    of_limit = fields("*limit*") if row == "`show`" else set()
    assert {*busy.json(*COMMANDS[row])} == fields(row) | of_limit


def test_fields_within(busy: Shell) -> None:
    def check(found: Any, row: str, *names: str) -> None:
        for name in names:
            one = found[name][0] if isinstance(found[name], list) else found[name]
            assert {*one} == inner(row, name), name

    status = busy.json("ls")
    check(status, "`ls`", "limits", "stranded")
    (mail,) = (one for one in status["limits"] if one["name"] == "mail")
    check(mail, "*limit*", "origin", "usage")
    assert {*mail["totals"]} == fields("`totals`")
    assert {*mail["origin"]["author"]} == fields("`author`")
    check(busy.json("show", "mail"), "`show`", "recent", "queues", "top_keys")
    check(busy.json("show", "slots"), "`show`", "slots")
    check(busy.json("show", "mail", "t0"), "*limit*", "usage")
    task = busy.json("why", "id1")
    check(task, "`why`", "limits", "blocked_by", "pauses")
    check(busy.json("waiting", "mail"), "`waiting`", "tasks")
    check(busy.json("history"), "`history`", "changes")
    check(busy.json("fanouts"), "`fanouts`", "fanouts")
    preview = busy.json("pause", "mail", "--for", "1m")["preview"]
    assert {*preview} == fields("`preview`")
    assert {*preview["before"]} == fields("`forecast`")


@pytest.mark.parametrize("row", COMMANDS)
def test_the_commands_that_need_the_app(app: Any, row: str) -> None:
    refused = re.findall(
        r"`([\w ]+)`", re.split(r"^\* refuses ", PAGE, flags=re.MULTILINE)[1].split(";")[0]
    )
    fill(app, 1)
    words = COMMANDS[row]
    code = Shell(app, "celery-throttle").code(*words)
    assert (code == ExitCode.USAGE) == (" ".join(words[:2]) in refused or words[0] in refused)
