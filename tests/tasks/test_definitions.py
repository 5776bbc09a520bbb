"""Mistakes in tasks, routes and settings: the error names place and text, and what is allowed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task, _state

from celery_throttle import (
    ConfigurationError,
    CostError,
    KeyTemplateError,
    KeyValueError,
    Limit,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    Throttle,
    ThrottledTask,
    ThrottleError,
    ThrottleWarning,
    UnknownLimitError,
)
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.tasks.settings import Settings
from celery_throttle.tasks.task_limits import TaskLimits
from tests.servers.server import free_port
from tests.workers import Worker

LIMITS = {"stripe": "100/s burst 20", "mail": "10/m"}
MORE_LIMITS = {
    **LIMITS,
    "github": ["5000/h using fixed-window", "10 at once"],
    "tokens": ["100/s burst 50", "1000/h using sliding-log"],
    "slots": "3 at once",
}


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", broker="redis://localhost/0", set_as_current=False) as app:
        yield app


def define(app: Celery, **options: Any) -> Task:
    def charge(order_id: int, *, tenant_id: int = 0, card: str = "", units: Any = 1) -> None: ...

    options = {"name": "shop.charge", "lazy": False, "shared": False, **options}
    task: Task = app.task(**options)(charge)
    return task


def require(limits: TaskLimits, args: Any, kwargs: Any) -> Requirement:
    """What a call needs to which limits apply."""
    requirement = limits.requirement(args, kwargs)
    assert requirement is not None
    return requirement


def send(app: Celery, **options: Any) -> None:
    """What is wrong with a task is an error when that task is sent; it is none before."""
    define(app, **options).delay(1)


@pytest.mark.parametrize("text", ["", "100", "100/", "x/s", "1/fortnight", "1/s burst", "1/s 5"])
def test_a_limit_that_does_not_parse(app: Celery, text: str) -> None:
    with pytest.raises(LimitSyntaxError) as caught:
        Throttle(app, limits={"stripe": text})
    assert "allowed:" in str(caught.value)
    assert text.partition(" burst")[0] in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0/s", "-1/s", "1/0s", "99999999999999999999/s", "1/s burst 0", "1/s burst -3"]
)
def test_a_limit_with_a_number_out_of_range(app: Celery, text: str) -> None:
    with pytest.raises(LimitValueError, match=r"allowed: ") as caught:
        Throttle(app, limits={"stripe": text})
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "mail:{x}", "1st", 5])
def test_a_limit_with_a_name_it_cannot_have(app: Celery, name: Any) -> None:
    with pytest.raises(LimitError, match="allowed:") as caught:
        Throttle(app, limits={name: "1/s"})
    assert repr(name) in str(caught.value)


def test_an_unknown_limit(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(UnknownLimitError) as caught:
        send(app, throttle="strippe")
    for part in ("task 'shop.charge'", "'strippe'", "'stripe'"):
        assert part in str(caught.value)


def test_an_unknown_argument(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(KeyTemplateError) as caught:
        send(app, throttle="mail:{tenant}")
    for part in ("task 'shop.charge'", "'tenant'", "order_id, tenant_id, card, units"):
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["mail:", "mail:{", "mail:{a b}", "mail:{tenant_id", "mail:{}"])
def test_a_malformed_template(app: Celery, text: str) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(LimitError, match="allowed") as caught:
        send(app, throttle=text)
    assert "task 'shop.charge'" in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("spec", [5, 1.5, True, object(), b"stripe", ["stripe", 5], {"stripe": 2}])
def test_limits_of_a_type_that_cannot_be_read(app: Celery, spec: Any) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(ThrottleError, match=r"task 'shop\.charge'"):
        send(app, throttle=spec)


@pytest.mark.parametrize("spec", [[], ["stripe", "stripe"], ["mail:{card}", "mail:{card}"]])
def test_no_limit_or_one_twice(app: Celery, spec: list[str]) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(LimitError, match=r"task 'shop\.charge'") as caught:
        send(app, throttle=spec)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize(
    "cost",
    [0, -1, -0.5, "2", True, None, 21, 20.000001, 1e300, 10**400, float("nan"), float("inf"), [1]],
    ids=lambda cost: repr(cost)[:10],
)
def test_a_cost_that_can_never_pass(app: Celery, cost: Any) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(CostError, match=r"task 'shop\.charge'") as caught:
        send(app, throttle="stripe", throttle_cost=cost)
    assert f"cost {cost!r}"[:80] in str(caught.value)


def test_keys_that_come_out_the_same_are_one(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)
    task = define(app, throttle=["mail:{order_id}", "mail:{tenant_id}"])
    limits = throttle.task_limits(task)
    assert limits is not None
    assert len(require(limits, (7,), {"tenant_id": 8}).refs) == 2
    requirement = require(limits, (7,), {"tenant_id": "7"})
    assert (requirement.refs, requirement.costs) == ((LimitRef("mail", "7"),), (1_000_000,))


def test_a_cost_above_the_burst_of_one_of_the_limits(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(CostError, match=r"allowed: at most 1$") as caught:
        send(app, throttle=["stripe", "mail:{tenant_id}"], throttle_cost=2)
    assert "limit 'mail'" in str(caught.value)
    assert "task 'shop.charge'" in str(caught.value)


@pytest.mark.parametrize("name", ["units", "unit s", "1", "", "units!r", "tenant.id"])
def test_a_cost_that_no_argument_tells(app: Celery, name: str) -> None:
    Throttle(app, limits=LIMITS)
    if name == "units":
        define(app, throttle="stripe", throttle_cost=f"{{{name}}}")
        return
    with pytest.raises(CostError, match=r"task 'shop\.charge'.*is not allowed") as caught:
        send(app, throttle="stripe", throttle_cost=f"{{{name}}}")
    assert repr(f"{{{name}}}") in str(caught.value)


@pytest.mark.parametrize("cost", ["{unit}", {"stripe": "{unit}"}])
def test_a_cost_that_an_unknown_argument_tells(app: Celery, cost: Any) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(KeyTemplateError) as caught:
        send(app, throttle="stripe", throttle_cost=cost)
    for part in ("task 'shop.charge'", "'unit'", "order_id, tenant_id, card, units"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["mail", "strippe", "stripe:{card}", "", None, 5])
def test_a_cost_of_a_limit_that_the_task_does_not_name(app: Celery, name: Any) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(LimitError, match=r"task 'shop\.charge'.*no limit of the task") as caught:
        send(app, throttle="stripe", throttle_cost={name: 1})
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("cost", "offending"),
    [
        ({"stripe": 21}, "cost 21"),
        ({"mail": 1.5}, "cost 1.5"),
        ({"stripe": 0}, "cost 0"),
        ({"stripe": {"stripe": 1}}, "cost {'stripe': 1}"),
        ({"stripe": "{a b}"}, "cost '{a b}'"),
    ],
)
def test_a_cost_by_the_name_of_the_limit_that_can_never_pass(
    app: Celery, cost: Mapping[str, Any], offending: str
) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(CostError, match=r"task 'shop\.charge'") as caught:
        send(app, throttle=["stripe", "mail:{tenant_id}"], throttle_cost=cost)
    assert offending in str(caught.value)


def test_a_cost_above_one_of_several_limits_of_a_name(app: Celery) -> None:
    Throttle(app, limits=MORE_LIMITS)
    define(app, name="shop.other", throttle="tokens", throttle_cost=50)
    with pytest.raises(CostError, match=r"can never pass.*'tokens' \(100/s burst 50\)"):
        send(app, throttle="tokens", throttle_cost=51)


def costs_of(throttle: Throttle, task: Task, **arguments: Any) -> tuple[int, ...]:
    limits = throttle.task_limits(task)
    assert limits is not None
    return require(limits, (1,), arguments).costs


@pytest.mark.parametrize(
    ("cost", "costs"),
    [
        (1, (1_000_000, 1_000_000)),
        (0.5, (500_000, 500_000)),
        (Decimal("0.25"), (250_000, 250_000)),
        (Fraction(1, 3), (333_333, 333_333)),
        ({"stripe": 20}, (20_000_000, 1_000_000)),
        ({"stripe": 2.5, "mail": 0.5}, (2_500_000, 500_000)),
        ({}, (1_000_000, 1_000_000)),
        ("{units}", (3_500_000, 3_500_000)),
        ({"stripe": "{units}"}, (3_500_000, 1_000_000)),
        ({"stripe": "{units}", "mail": 0.125}, (3_500_000, 125_000)),
    ],
)
def test_costs_that_are_right(app: Celery, cost: Any, costs: tuple[int, ...]) -> None:
    throttle = Throttle(app, limits=LIMITS)
    task = define(app, throttle=["stripe", "mail:{tenant_id}"], throttle_cost=cost)
    assert costs_of(throttle, task, units=3.5) == costs


def test_a_cost_that_an_argument_tells(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)
    task = define(app, throttle="stripe", throttle_cost="{units}")
    assert costs_of(throttle, task) == (1_000_000,)  # the argument's default
    assert costs_of(throttle, task, units=Decimal("2.5")) == (2_500_000,)
    for units in (0, -1, None, "5", True, float("nan"), [1]):
        with pytest.raises(CostError, match=re.escape(f"cost {units!r} is not allowed")):
            costs_of(throttle, task, units=units)
    required = define(app, name="shop.other", throttle="stripe", throttle_cost="{order_id}")
    limits = throttle.task_limits(required)
    assert limits is not None
    assert (
        require(limits, (4,), {}).costs
        == require(limits, (), {"order_id": 4}).costs
        == (4_000_000,)
    )
    with pytest.raises(KeyValueError, match=r"task 'shop\.other'.*'order_id'"):
        require(limits, (), {})


def test_what_every_call_needs_is_found_once(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)
    fixed = throttle.task_limits(define(app, throttle="stripe", throttle_cost=0.5))
    assert fixed is not None
    assert fixed.fixed == fixed.requirement((1,), {})
    keyed = define(app, name="shop.keyed", throttle="mail:{card}")
    told = define(app, name="shop.told", throttle="stripe", throttle_cost={"stripe": "{units}"})
    for task in (keyed, told):
        limits = throttle.task_limits(task)
        assert limits is not None
        assert limits.fixed is None


def test_limits_of_a_name_that_has_several_and_slots_among_them(app: Celery) -> None:
    throttle = Throttle(app, limits=MORE_LIMITS)
    task = define(app, throttle=["stripe", "github:{tenant_id}", "tokens", "slots"])
    limits = throttle.task_limits(task)
    assert limits is not None
    assert [ref.name for ref in require(limits, (1,), {}).refs] == [
        "stripe",
        "github",
        "tokens",
        "slots",
    ]
    assert limits.slots == (1, 3)
    # Of slots one is taken, whatever the cost.
    define(app, name="shop.other", throttle="slots", throttle_cost=1000)


@pytest.mark.parametrize("limits", [[], ["1/s", "1/fortnight"], ["1 at once", "2 at once"], None])
def test_several_limits_of_a_name_that_cannot_be_read(app: Celery, limits: Any) -> None:
    with pytest.raises(LimitError, match="allowed:"):
        Throttle(app, limits={"github": limits})


@pytest.mark.parametrize(
    "text",
    [
        "10 at once burst 2",
        "0 at once",
        "10/d using fixed-window in Mars/Base",
        "10/s using sliding-window parts 3",
        "10/s parts 2",
        "10/s burst 2 using sliding-log",
    ],
)
def test_a_clause_that_cannot_be(app: Celery, text: str) -> None:
    with pytest.raises(LimitError, match=r"allowed|it is for"):
        Throttle(app, limits={"stripe": text})


@pytest.mark.parametrize("wait", [-1, "5", float("nan"), float("inf"), True])
def test_a_wait_that_is_no_time(app: Celery, wait: Any) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(ThrottleError, match=r"task 'shop\.charge'.*throttle_max_wait") as caught:
        send(app, throttle="stripe", throttle_max_wait=wait)
    assert repr(wait) in str(caught.value)


def test_a_task_with_too_many_limits(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(LimitValueError, match=r"task 'shop\.charge': 101 limits.*at most 100$"):
        send(app, throttle=[f"mail:{number}" for number in range(101)])


def test_what_happens_after_too_long_a_wait(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(ConfigurationError) as caught:
        send(app, throttle="stripe", throttle_on_max_wait="explode")
    for part in ("task 'shop.charge'", "throttle_on_max_wait", "'explode'", "'fail'", "'drop'"):
        assert part in str(caught.value)


def test_what_is_right_is_accepted(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)
    task = define(
        app,
        throttle=("stripe", "mail:{tenant_id}"),
        throttle_max_wait=0,
        throttle_on_max_wait="drop",
    )
    limits = throttle.task_limits(task)
    assert limits is not None
    stripe, mail = require(limits, (1,), {"tenant_id": 42}).refs
    assert (stripe.name, stripe.key, mail.name, mail.key) == ("stripe", None, "mail", "42")


def test_a_task_defined_before_the_throttle_has_its_base(app: Celery) -> None:
    @app.task(throttle="stripe", shared=False)
    def early() -> None: ...

    Throttle(app, limits=LIMITS)
    assert isinstance(app.tasks[early.name], ThrottledTask)


def test_a_method_of_a_class_gives_its_arguments(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)

    class Charge(ThrottledTask):
        name = "shop.charge"
        throttle = "mail:{tenant_id}"

        def run(self, tenant_id: int) -> None: ...

    task = app.register_task(Charge())
    limits = throttle.task_limits(task)
    assert limits is not None
    assert [ref.key for ref in require(limits, (7,), {}).refs] == ["7"]


def with_session(function: Any) -> Any:
    """A decorator whose function has arguments of its own."""

    @wraps(function)
    def run(tenant_id: int, other: int) -> None:
        function("session", tenant_id, other)

    return run


def passing_on(function: Any) -> Any:
    """A decorator whose function passes all arguments on."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return run


def test_a_decorated_function_has_the_arguments_that_its_calls_have(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)

    @app.task(throttle="mail:{tenant_id}", shared=False)
    @passing_on
    @with_session
    def inner(session: Any, tenant_id: int, other: int) -> None: ...

    @app.task(throttle="mail:{tenant_id}", shared=False)
    @passing_on
    def passed(tenant_id: int, other: int) -> None: ...

    for task in (inner, passed):
        limits = throttle.task_limits(app.tasks[task.name])
        assert limits is not None
        assert [ref.key for ref in require(limits, (7, 8), {}).refs] == ["7"]


@pytest.mark.parametrize(
    "run",
    [
        classmethod(lambda cls, tenant_id, other: None),  # noqa: ARG005  # it has the key
        staticmethod(lambda tenant_id, other: None),  # noqa: ARG005  # it has the key
    ],
    ids=lambda run: type(run).__name__,
)
def test_a_run_that_is_no_method_gives_its_arguments(app: Celery, run: Any) -> None:
    throttle = Throttle(app, limits=LIMITS)
    attributes = {"name": "shop.charge", "throttle": "mail:{tenant_id}", "run": run}
    task = app.register_task(type("Charge", (ThrottledTask,), attributes)())
    limits = throttle.task_limits(task)
    assert limits is not None
    assert [ref.key for ref in require(limits, (7, 8), {}).refs] == ["7"]


def test_calls_of_a_task_without_typing_have_any_argument(app: Celery) -> None:
    """As those of celery-batches: ``run`` gets a list of requests."""
    throttle = Throttle(app, limits=LIMITS)

    @app.task(throttle="mail:{tenant_id}", throttle_cost="{units}", typing=False, shared=False)
    def count(requests: list[Any]) -> None: ...

    limits = throttle.task_limits(app.tasks[count.name])
    assert limits is not None
    requirement = require(limits, (), {"tenant_id": 7, "units": 2})
    assert [ref.key for ref in requirement.refs] == ["7"]
    assert requirement.units == 2
    with pytest.raises(KeyValueError, match="without the argument 'tenant_id'"):
        require(limits, (7,), {})


@pytest.mark.parametrize("attribute", ["task_cls", "Task"])
@pytest.mark.parametrize("own", ["Celery's", "the app's", "ours"])
@pytest.mark.parametrize("first", [True, False])
def test_a_base_of_the_apps_own_stays(app: Any, attribute: str, own: str, *, first: bool) -> None:
    """Whether it is assigned before or after the Throttle is made, with all its attributes."""
    if not first:
        Throttle(app, limits=LIMITS)
    parent: Any = {"Celery's": Task, "the app's": app.Task, "ours": ThrottledTask}[own]
    vars(app).pop("Task")  # once it is used, Celery ignores another `task_cls`
    attributes = {"throttle": "stripe", "Request": "shop.requests:Request"}
    base = type("Base", (parent,), {"abstract": True, **attributes})
    setattr(app, attribute, base)
    if first:
        Throttle(app, limits=LIMITS)
    task = define(app)
    assert isinstance(task, base)
    assert isinstance(task, ThrottledTask)
    assert task.app is app
    assert {name: getattr(task, name) for name in attributes} == attributes


def test_the_limits_of_a_foreign_base_are_checked_too(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS)
    task = define(app, base=Task, throttle="strippe")
    with pytest.raises(UnknownLimitError, match=r"task 'shop\.charge'"):
        throttle.task_limits(task)


def test_a_task_with_limits_on_an_app_without_a_throttle(app: Celery) -> None:
    # A limit that no other app of this process has: there may be some that earlier tests made.
    with pytest.raises(ConfigurationError, match=r"task 'shop\.charge'.*Throttle\(app"):
        send(app, base=ThrottledTask, throttle="limit-of-nobody")


def test_two_apps_with_limits_of_their_own(app: Celery) -> None:
    """Celery gives the tasks of one app to every other app of the process."""
    Throttle(app, limits=LIMITS)
    finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
    before = set(finalizers)

    @app.task(throttle="stripe")
    def charge() -> None: ...

    try:
        with Celery("other", broker="redis://localhost/0", set_as_current=False) as other:
            Throttle(other, limits={"github": "1/s"})
            other.finalize()
    finally:
        finalizers.intersection_update(before)


def test_a_second_throttle(app: Celery) -> None:
    Throttle(app, limits=LIMITS)
    with pytest.raises(ConfigurationError, match=r"'shop' has a Throttle already: app\.throttle"):
        Throttle(app)


# Settings.


def test_limits_and_routes_from_the_configuration(app: Celery) -> None:
    app.conf.throttle_limits = LIMITS
    app.conf.throttle_routes = {"shop.*": "mail:{tenant_id}"}
    app.conf.throttle_prefix = "{other}"
    throttle = Throttle(app)
    limits = throttle.task_limits(define(app))
    assert limits is not None
    assert [template.text for template in limits.templates] == ["mail:{tenant_id}"]
    assert throttle.keys.limits == "{other}:limits"


def test_limits_from_a_configuration_with_a_namespace(app: Celery) -> None:
    class Config:
        CELERY_THROTTLE_LIMITS = LIMITS
        CELERY_THROTTLE_URL = "valkey://somewhere/3"
        CELERY_THROTTLE_ROUTES = {"shop.charge": "stripe"}  # noqa: RUF012 -- as settings modules do

    app.config_from_object(Config, namespace="CELERY")
    throttle = Throttle(app)
    assert throttle.limits == {name: (Limit.parse(text),) for name, text in LIMITS.items()}
    assert throttle.settings.url == "valkey://somewhere/3"
    limits = throttle.task_limits(define(app))
    assert limits is not None
    assert [template.name for template in limits.templates] == ["stripe"]


def test_an_argument_beats_the_configuration(app: Celery) -> None:
    app.conf.throttle_limits = {"mail": "1/s"}
    app.conf.throttle_url = "redis://elsewhere/1"
    throttle = Throttle(app, limits=LIMITS, url="redis://here/2")
    assert throttle.limits == {name: (Limit.parse(text),) for name, text in LIMITS.items()}
    assert throttle.settings.url == "redis://here/2"


def test_a_task_says_more_than_a_route_and_a_name_more_than_a_pattern(app: Celery) -> None:
    throttle = Throttle(
        app, limits=LIMITS, routes={"*": "mail", "shop.charge": "stripe", "shop.*": "mail:eu"}
    )

    def scopes(task: Task) -> list[str]:
        limits = throttle.task_limits(task)
        return [template.text for template in limits.templates] if limits else []

    assert scopes(define(app)) == ["stripe"]
    assert scopes(define(app, name="shop.x")) == ["mail"]  # the first pattern that matches
    assert scopes(define(app, name="shop.y", throttle="mail:us")) == ["mail:us"]


def test_a_route_may_have_a_cost(app: Celery) -> None:
    routes: Any = {
        "shop.a": {"limits": ["mail:{tenant_id}", "stripe"], "cost": {"stripe": "{units}"}},
        "shop.b": {"limits": "stripe"},
        "shop.c": {"limits": "stripe", "cost": lambda units: units + 1},
    }
    throttle = Throttle(app, limits=LIMITS, routes=routes)

    def costs(name: str) -> tuple[int, ...]:
        limits = throttle.task_limits(define(app, name=name, throttle_cost=3))
        assert limits is not None
        return require(limits, (1,), {"units": 7}).costs

    million = 1_000_000
    assert [costs(name) for name in routes] == [
        (million, 7 * million),
        (3 * million,),
        (8 * million,),
    ]


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ({"limit": "mail"}, "throttle_routes['a'] has the key 'limit'; allowed: 'limits', and"),
        ({"cost": 2}, "throttle_routes['a'] has no 'limits'; allowed: 'limits', and 'cost'"),
    ],
)
def test_a_route_with_another_key(app: Celery, route: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        Throttle(app, limits=LIMITS, routes={"a": route})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limits", ["100/s"]),
        ("limits", "100/s"),
        ("routes", "stripe"),
        ("routes", [("shop.*", "stripe")]),
        ("lease", 0),
        ("lease", "30"),
        ("prefix", 5),
        ("url", 5),
    ],
)
def test_a_setting_of_the_wrong_kind(app: Celery, name: str, value: Any) -> None:
    app.conf.update({f"throttle_{name}": value})
    throttle = Throttle(app)
    with pytest.raises(ConfigurationError, match=f"throttle_{name}") as caught:
        getattr(throttle.settings, name)
    assert repr(value) in str(caught.value)
    if name != "url":
        with pytest.raises(ConfigurationError, match=f"throttle_{name}"):
            raise next(throttle.settings.mistakes())


def test_a_bad_limit_in_the_configuration(app: Celery) -> None:
    app.conf.throttle_limits = {"stripe": "10/fortnight"}
    with pytest.raises(LimitSyntaxError, match="'fortnight'"):
        _ = Throttle(app).limits


def test_a_route_to_an_unknown_limit(app: Celery) -> None:
    with pytest.raises(UnknownLimitError) as caught:
        Throttle(app, limits=LIMITS, routes={"shop.*": "strippe:{tenant_id}"})
    for part in ("throttle_routes['shop.*']", "'strippe'", "'stripe'"):
        assert part in str(caught.value)


def test_a_route_to_an_unknown_argument(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS, routes={"shop.*": "mail:{tenant}"})
    with pytest.raises(KeyTemplateError, match=r"shop\.charge.*'tenant'.*tenant_id"):
        throttle.task_limits(define(app))


@pytest.mark.parametrize("broker", ["amqp://guest:secret@rabbit//", "memory://", "sqs://k:secret@"])
def test_a_broker_that_is_not_redis(broker: str) -> None:
    with Celery("shop", broker=broker, set_as_current=False) as app:
        throttle = Throttle(app, limits=LIMITS)
        with pytest.raises(ConfigurationError, match=r"set app\.conf\.throttle_url") as caught:
            _ = throttle.settings.url
    assert broker.partition(":")[0] in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("broker", ["amqp://rabbit//", "redis://broker"])
def test_a_url_in_the_environment(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THROTTLE_URL", "redis://environment")
    with Celery("shop", broker=broker, set_as_current=False) as app:
        settings = Throttle(app).settings
        assert settings.has_server
        assert settings.url == "redis://environment"


def test_app_conf_and_arguments_override_the_environment(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THROTTLE_URL", "redis://environment")
    app.conf.throttle_url = "redis://conf"
    assert Settings(app.conf, {}).url == "redis://conf"
    assert Settings(app.conf, {"url": "redis://argument"}).url == "redis://argument"


def test_an_empty_url_in_the_environment_is_none(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``THROTTLE_URL=`` in a file of variables."""
    monkeypatch.setenv("THROTTLE_URL", "")
    assert Settings(app.conf, {}).url == "redis://localhost/0"


def test_a_url_of_no_server_that_keeps_limits(app: Celery) -> None:
    throttle = Throttle(app, limits=LIMITS, url="postgres://user:secret@host/db")
    with pytest.raises(ConfigurationError, match=r"redis://.*valkey://") as caught:
        _ = throttle.store
    assert "postgres" in str(caught.value)
    assert "secret" not in str(caught.value)


# Workers that cannot start.


def ended(*, env: dict[str, str], broker: str) -> tuple[int, str]:
    worker = Worker("tests.apps.shop", broker, env=env)
    worker.start()
    try:
        return worker.wait(100), worker.log()
    finally:
        worker.close()


@pytest.mark.workers
@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_worker_starts_whose_limits_cannot_be_reached(redis_url: str, scheme: str) -> None:
    url = f"{scheme}://user:secret@127.0.0.1:{free_port()}/0"
    env = {"THROTTLE_URL": url, "CELERY_RESULT_BACKEND": redis_url}
    with Worker("tests.apps.shop", redis_url, env=env) as worker:
        log = worker.log()
    shown = re.escape(url.replace("user:secret@", "").replace("valkey:", "redis:"))
    assert re.search(f"the server at (redis|valkey){shown.removeprefix('redis')} cannot", log), log
    assert "secret" not in log


@pytest.mark.workers
def test_a_worker_whose_limits_are_kept_nowhere(redis_url: str) -> None:
    status, log = ended(
        env={"THROTTLE_URL": "http://user:secret@host/", "CELERY_RESULT_BACKEND": redis_url},
        broker=redis_url,
    )
    assert status != 0
    assert "http" in log
    assert "the URL must start with one of" in log
    assert "secret" not in log


@pytest.mark.parametrize("written", ["100/m", 0.5])
@pytest.mark.parametrize("default", [False, True])
def test_celerys_rate_limit_beside_limits(
    app: Celery, written: str | float, *, default: bool
) -> None:
    """Its own or the app's: the warning says what to write, and shows where the task is."""
    Throttle(app, LIMITS)
    options: dict[str, Any] = {} if default else {"rate_limit": written}
    if default:
        app.conf.task_default_rate_limit = written
    with pytest.warns(ThrottleWarning) as caught:
        define(app, throttle=["stripe", "mail"], **options)
    (warning,) = caught
    text = str(warning.message)
    assert f"task 'shop.charge' has limits and rate_limit={written!r}" in text
    assert "write it as one more limit" in text
    assert text.endswith("set rate_limit = 0")
    assert warning.filename == __file__


@pytest.mark.parametrize("rate_limit", [None, 0, "0", "wrong"])
def test_no_rate_limit_of_celerys(app: Celery, rate_limit: Any) -> None:
    """What is wrong with one, Celery says."""
    Throttle(app, LIMITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(app, throttle="stripe", rate_limit=rate_limit)


def test_celerys_rate_limit_without_limits(app: Celery) -> None:
    Throttle(app, LIMITS)
    app.conf.task_default_rate_limit = "4/s"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(app)


def test_what_the_warning_says_leads_to_no_other(app: Celery) -> None:
    Throttle(app, {**LIMITS, "charge-rate": "4/s"})
    app.conf.task_default_rate_limit = "4/s"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        define(app, throttle=["stripe", "charge-rate"], rate_limit=0)
