"""Functions of a task's arguments: which arguments they get, and what is wrong at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_throttle import (
    ConfigurationError,
    KeyTemplateError,
    LimitError,
    LimitFunctionError,
    Throttle,
)
from celery_throttle.limits.key import LimitRef

# ruff: noqa: ARG005, ARG001  # the arguments are for the limits


@pytest.fixture
def app() -> Iterator[Any]:
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        Throttle(app, {"mail": "10/m burst 9", "all": "100/s burst 20"}, url="memory://")
        yield app


def refs(app: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What the calls of a task with the arguments a, b=2 and c need."""

    def run(self: Any, a: Any, b: int = 2, *, c: Any = "c") -> None: ...

    options = {"bind": True, "shared": False, "lazy": False, "throttle": function}
    task = app.task(name=f"task {id(function)}", **options)(run)
    requirement = app.throttle.task_limits(task).requirement(args, kwargs)
    return requirement and requirement.refs


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda a: f"mail:{a}", "1"),
        (lambda c, b: f"mail:{b}{c}", "2c"),
        (lambda b, *, a: f"mail:{b}{a}", "21"),
        (lambda a, /, b: f"mail:{a}{b}", "12"),
        (lambda a, other="x": f"mail:{a}{other}", "1x"),
        (lambda *args, **kwargs: f"mail:{len(args)}{len(kwargs)}", "10"),
        (partial(lambda a, plan: f"mail:{a}{plan}", plan="gold"), "1gold"),
        (lambda a: "mail:{c}:{a}", "c:1"),
    ],
)
def test_a_function_gets_the_arguments_that_it_names(app: Any, function: Any, key: str) -> None:
    assert refs(app, function, 1) == (LimitRef("mail", key),)


def test_a_function_of_a_class_may_use_its_task(app: Any) -> None:
    class Mail(app.Task):  # type: ignore[misc]  # an attribute
        name = "mail"
        plan = "gold"

        def throttle(self, user: str) -> Any:
            return [self.app.throttle["mail", (self.plan, user)], None, "all"]

        def run(self, user: str) -> None: ...

    limits = app.throttle.task_limits(app.register_task(Mail()))
    assert limits.requirement(("ada",), {}).refs == (("mail", "gold:ada"), ("all", None))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ([], None),
        ([None], None),
        ("all", (("all", None),)),
        (["all", "mail:7", "all"], (("all", None), ("mail", "7"))),
    ],
)
def test_what_a_function_may_return(app: Any, result: Any, expected: Any) -> None:
    assert refs(app, lambda a: result, 1) == expected


async def wait_for(a: Any) -> str:
    return "mail"


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda user: None, KeyTemplateError, "has no argument 'user'; allowed: a, b, c"),
        (wait_for, ConfigurationError, "'wait_for' is async; allowed: a plain function"),
    ],
)
def test_a_function_that_cannot_be_called_is_an_error_at_once(
    app: Any, function: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        refs(app, function, 1)
    assert str(caught.value).startswith("task 'task ")
    assert str(caught.value).count("task 'task ") == 1
    with pytest.raises(ConfigurationError, match=text):
        app.throttle.check()


def test_a_cost_for_a_limit_that_a_function_returns(app: Any) -> None:
    def pay(a: Any) -> None: ...

    options = {"throttle": lambda a: "all", "shared": False, "lazy": False}
    task = app.task(name="paid", throttle_cost={"all": lambda a: a}, **options)(pay)
    assert app.throttle.task_limits(task).requirement((7,), {}).units == 7
    task = app.task(name="by name", throttle_cost=lambda a: {"all": a, "mail": 5}, **options)(pay)
    assert app.throttle.task_limits(task).requirement((7,), {}).units == 7
    task = app.task(name="misspelt", throttle_cost=lambda a: {"al": a}, **options)(pay)
    text = r"returned \{'al': 7\}: a cost is given for 'al', .*; write 'all'"
    with pytest.raises(LimitFunctionError, match=text):
        app.throttle.task_limits(task).requirement((7,), {})
    task = app.task(name="unknown", throttle_cost={"al": 2}, **options)(pay)
    with pytest.raises(LimitError, match="throttle_cost names 'al'"):
        app.throttle.task_limits(task)
