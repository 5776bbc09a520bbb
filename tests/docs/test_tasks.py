"""docs/reference/tasks.md has every attribute of tasks, and keys and costs are as it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.errors import (
    ConfigurationError,
    CostError,
    KeyTemplateError,
    KeyValueError,
    LimitError,
)
from celery_throttle.limits.key import encode_key
from celery_throttle.tasks.task import ThrottledTask
from celery_throttle.worker import tuning
from tests.docs import pages

PAGE = pages.read("reference/tasks.md")


def nothing() -> None: ...


class Plan(Enum):
    GOLD = 1


class TextPlan(str, Enum):
    GOLD = "gold"


Plan.__qualname__ = "Plan"
NAMES = {
    "date": date,
    "datetime": datetime,
    "Decimal": Decimal,
    "Fraction": Fraction,
    "Plan": Plan,
    "UUID": UUID,
    "estimate_tokens": lambda tokens: tokens * 2,
}


@pytest.fixture
def app() -> Iterator[Any]:
    with Celery("shop", set_as_current=False) as app:
        Throttle(app, {"stripe": "100/s burst 20", "mail": "10/m burst 9", "github": "10 at once"})
        yield app


def read(app: Any, **options: Any) -> Any:
    """Return the limits of a task with some options."""

    def send(tenant_id: int = 7, region: str = "eu", **more: Any) -> None: ...

    return app.throttle.task_limits(app.task(shared=False, lazy=False, **options)(send))


def test_the_table_has_every_attribute_with_its_default() -> None:
    rows = re.findall(
        r"^\| \[`(throttle\w*)`\]\(#(\w+)\) \| [^|]+ \| `([^`]+)` \|$", PAGE, re.MULTILINE
    )
    known = {
        name: value for name, value in vars(ThrottledTask).items() if name.startswith("throttle")
    }
    assert {name: ast.literal_eval(default) for name, _, default in rows} == known
    assert all(f"\n## `{name}`\n" in PAGE and name == anchor for name, anchor, _ in rows)


KEYS = [
    (value, key)
    for values, keys in pages.table(PAGE, "Which keys are equal")
    for value in re.findall(r"`([^`]+)`", values.partition(" (")[0])
    for key in [re.findall(r"`([^`]+)`", keys)]
]


@pytest.mark.parametrize(("value", "keys"), KEYS)
def test_keys(value: str, keys: list[str]) -> None:
    encoded = encode_key(eval(value, NAMES))  # noqa: S307  # our own page
    assert encoded == (keys[value == "False"])


def test_other_keys() -> None:
    assert len(KEYS) > 15
    assert encode_key(TextPlan.GOLD) == "gold"
    assert re.fullmatch("#[0-9a-f]{32}", encode_key("x" * 81))
    assert encode_key("x" * 80) == "x" * 80
    for value in ([1], {}, object()):
        with pytest.raises(KeyValueError):
            encode_key(value)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ('"stripe"', None),
        ('"mail:{tenant_id}"', "7"),
        ('"mail:{tenant_id}:eu"', "7:eu"),
        ('"mail:eu"', "eu"),
    ],
)
def test_templates(app: Any, template: str, key: str | None) -> None:
    assert template in [row[0].strip("`") for row in pages.table(PAGE, "Key templates")]
    text = template.strip('"')
    requirement = read(app, throttle=text).requirement((), {})
    assert requirement.refs == ((text.partition(":")[0], key),)


@pytest.mark.parametrize("arguments", [{}, {"customer": None}])
def test_an_argument_that_is_none_or_missing(app: Any, arguments: dict[str, Any]) -> None:
    for text in ("mail:{tenant_id?}", "mail:{tenant_id=none}"):
        assert f'`"{text}"`' in PAGE
    without = read(app, name="without", throttle="mail:{customer?}")
    assert without.requirement((), arguments) is None
    others = read(app, name="others", throttle=["mail:{customer?}", "stripe"])
    assert others.requirement((), arguments).refs == (("stripe", None),)
    default = read(app, name="default", throttle="mail:{customer=none}:eu")
    assert default.requirement((), arguments).refs == (("mail", "none:eu"),)
    for limits, key in ((without, "7"), (default, "7:eu")):
        assert limits.requirement((), {"customer": 7}).refs == (("mail", key),)


def test_any_name_is_allowed_with_keywords(app: Any) -> None:
    limits = read(app, throttle="mail:{customer}")
    assert limits.requirement((), {"customer": "ada"}).refs == (("mail", "ada"),)
    with pytest.raises(KeyValueError):
        limits.requirement((), {})
    with pytest.raises(KeyTemplateError):
        read(app, name="of an item", throttle="mail:{user.id}")


def test_the_same_limit_and_key_is_charged_once(app: Any) -> None:
    limits = read(app, throttle=["mail:{tenant_id}", "mail:7"])
    assert limits.requirement((), {}).refs == (("mail", "7"),)
    for number, wrong in enumerate(([], ["mail", "mail"])):
        with pytest.raises(LimitError):
            read(app, name=f"wrong {number}", throttle=wrong)


@pytest.mark.parametrize("row", pages.table(PAGE, "`throttle_cost`"), ids=lambda row: row[0])
def test_costs(app: Any, row: list[str]) -> None:
    for text in re.findall(r"`([^`]+)`", row[0]):
        cost = eval(text.replace("llm", "mail"), dict(NAMES))  # noqa: S307  # our own page
        limits = read(app, name=text, throttle=["stripe", "mail"], throttle_cost=cost)
        limits.requirement((), {"tokens": 2, "recipients": ["a@b.c"]})


def test_costs_that_cannot_pass(app: Any) -> None:
    for cost in (0, -1, 21, True):
        with pytest.raises(CostError):
            read(app, name=f"cost {cost!r}", throttle="stripe", throttle_cost=cost)
    with pytest.raises(LimitError):
        read(app, name="another limit", throttle="stripe", throttle_cost={"mail": 1})
    limits = read(app, name="text", throttle="stripe", throttle_cost="{tokens}")
    with pytest.raises(CostError):
        limits.requirement((), {"tokens": "many"})


def test_other_values(app: Any) -> None:
    with pytest.raises(ConfigurationError):
        read(app, throttle="stripe", throttle_on_max_wait="retry")
    assert f"less than {tuning.MIN_SHOWN_WAIT_SECONDS} s" in PAGE


def test_the_order_of_routes(app: Any) -> None:
    app.conf.throttle_routes = {"[a].?": "github", "a.*": "mail", "*": "stripe", "a.b": "mail:eu"}

    def spec(name: str, **options: Any) -> Any:
        task = app.task(name=name, shared=False, lazy=False, **options)(nothing)
        return app.throttle.declared.route_of(task).limits

    assert spec("a.b") == "mail:eu"
    assert spec("a.c") == "mail"
    assert spec("[a].?") == "github"
    assert spec("A.c") == "stripe"
    assert spec("a.d", throttle="github") == "github"
