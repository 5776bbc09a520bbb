"""The examples in docs/concepts/algorithms.md print what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.cli.simulation.commands import run, words
from tests.cli.simulation.test_plot import texts
from tests.docs import pages
from tests.programs import ROOT

PAGE = pages.read("concepts/algorithms.md")
EXAMPLES = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
PLOTS = re.findall(r"celery-throttle simulate .*", (ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("command", "output"), EXAMPLES)
def test_an_example_is_what_the_command_prints(command: str, output: str) -> None:
    assert run(*words(command)) == (0, output)


@pytest.mark.parametrize("command", PLOTS)
def test_a_plot_shows_what_its_command_draws(command: str, tmp_path: Path) -> None:
    options = words(command)
    name = options.pop()
    fresh = tmp_path / "x.svg"
    assert run(*options, str(fresh))[0] == 0
    # Byte for byte is too much to ask of another version of matplotlib.
    assert texts(ROOT / name) == texts(fresh)


def test_the_page_shows_every_plot() -> None:
    shown = set(re.findall(r"\]\(\.\./plots/(.*?)\)", PAGE))
    assert shown == {command.rpartition("/")[2] for command in PLOTS}
    assert shown == {path.name for path in (pages.DOCS / "plots").iterdir()}


def test_the_limiter_answers_as_the_page_says(redis_url: str) -> None:
    blocks = re.findall(r"^```pycon\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    session = "".join(blocks).replace("redis://localhost/0", redis_url)
    test = doctest.DocTestParser().get_doctest(session, {}, "algorithms.md", None, 0)
    failures: list[str] = []
    outcome = doctest.DocTestRunner().run(test, out=failures.append)
    assert outcome.failed == 0, "".join(failures)
    assert outcome.attempted > 20
