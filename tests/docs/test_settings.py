"""docs/reference/settings.md has every setting, with its argument, its range and its default."""

from __future__ import annotations

import ast
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttle, ThrottleWarning
from celery_throttle.tasks.settings import _NAMES, CHECKS, PUBLISH, WAITING, Settings
from tests.docs import pages
from tests.programs import ROOT

PAGE = pages.read("reference/settings.md")
ROWS = re.findall(
    r"^\| \[`(throttle_\w+)`\]\(#(\w+)\) \| `(\w+)` "
    r"\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
    PAGE,
    re.MULTILINE,
)
NUMBERS = {row[0]: row[4] for row in ROWS if row[3] in ("number", "int")}


def value(name: str, written: Any) -> Any:
    return getattr(Settings({f"throttle_{name}": written}, {}), name)


@pytest.fixture(autouse=True)
def conf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a dict: nothing is misspelt."""
    monkeypatch.setattr("celery_throttle.tasks.option_warnings.find_in_settings", lambda *_: ())


def test_the_table_has_every_setting() -> None:
    assert {row[0] for row in ROWS} == {*_NAMES}
    assert len(ROWS) == len(_NAMES)


def test_every_setting_has_its_section() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [row[0] for row in ROWS]
    assert all(row[0] == row[1] for row in ROWS)


def test_the_arguments_are_those_of_throttle() -> None:
    parameters = [*inspect.signature(Throttle).parameters][1:]
    assert {row[2] for row in ROWS} == {*parameters}
    assert all(row[0] == f"throttle_{row[2]}" for row in ROWS)


@pytest.mark.parametrize("row", [row for row in ROWS if row[0] != "throttle_url"])
def test_defaults(row: tuple[str, ...]) -> None:
    default = ast.literal_eval(row[5].strip("`"))
    found = value(row[2], None)
    assert getattr(found, "entries", found) == default


@pytest.mark.parametrize(("name", "range_"), NUMBERS.items())
def test_ranges_of_numbers(name: str, range_: str) -> None:
    found = re.fullmatch(r"([\d.]+) (?:or more|to (\d+) seconds)", range_)
    assert found, range_
    name, least = name.removeprefix("throttle_"), ast.literal_eval(found[1])
    assert value(name, least) == least
    wrong = [least - 1, True, "1"]
    if found[2]:
        assert value(name, int(found[2])) == int(found[2])
        wrong.append(int(found[2]) + 1)
    for one in wrong:
        with pytest.raises(ConfigurationError):
            value(name, one)


@pytest.mark.parametrize(
    ("name", "allowed"), [("checks", CHECKS), ("waiting", WAITING), ("publish", PUBLISH)]
)
def test_values_of_texts(name: str, allowed: tuple[str, ...]) -> None:
    (cell,) = (row[4] for row in ROWS if row[2] == name)
    assert cell == ", ".join(f'`"{one}"`' for one in allowed)
    section = PAGE.partition(f"### `throttle_{name}`")[2].partition("###")[0]
    rows = re.findall(r'^\| `"(\w+)"` \|', section, re.MULTILINE)
    assert rows == [*allowed]


def test_the_order_of_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    with Celery("shop", broker="redis://broker/0", set_as_current=False) as app:
        app.conf.throttle_url = "redis://conf/0"
        monkeypatch.setenv("THROTTLE_URL", "redis://environment/0")
        assert Settings(app.conf, {"url": "redis://argument/0"}).url == "redis://argument/0"
        assert Settings(app.conf, {}).url == "redis://conf/0"
        app.conf.throttle_url = None
        assert Settings(app.conf, {}).url == "redis://environment/0"
        monkeypatch.delenv("THROTTLE_URL")
        assert Settings(app.conf, {}).url.startswith("redis://broker")


def test_a_namespace() -> None:
    with Celery("shop", set_as_current=False) as app:
        settings = SimpleNamespace(CELERY_THROTTLE_URL="redis://django/0")
        app.config_from_object(settings, namespace="CELERY")
        assert Settings(app.conf, {}).url == "redis://django/0"


def test_the_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(throttle_leese=60, trottle_limits={})
        with pytest.warns(ThrottleWarning) as caught:
            Settings(app.conf, {})
    shown = "".join(f"ThrottleWarning: {one.message}\n" for one in caught)
    assert f"```text\n{shown}```" in PAGE


_READ = re.compile(
    r'os\.environ\.get\("(\w+)"|"(\w+)" in os\.environ|envvar="(\w+)"|_VARIABLE = "(\w+)"'
)


def test_the_variables_of_the_environment() -> None:
    found = {
        name
        for path in (ROOT / "celery_throttle").rglob("*.py")
        for names in _READ.findall(path.read_text(encoding="utf-8"))
        for name in names
        if name
    }
    shown = {row[0].strip("`") for row in pages.table(PAGE, "Environment variables")}
    assert shown == found
