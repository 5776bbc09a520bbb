"""A mistake in the limits of a task is an error of that task only, wherever it is sent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group

from celery_throttle import (
    ConfigurationError,
    Throttle,
    ThrottleError,
    UnknownLimitError,
)
from tests.programs import ROOT
from tests.workers import Worker

LIMITS = {"stripe": "100/s", "mail": "10/m"}

#: As a web process does it: the first task that is sent finalizes the app.
SENDS = """
from tests.apps import misspelt
from celery_throttle import UnknownLimitError

print(sorted(misspelt.plain.delay(number).id and number for number in range(3)))
for task in (misspelt.limited, misspelt.wrong, misspelt.costly, misspelt.plain, misspelt.attribute):
    try:
        task.delay(1)
    except Exception as error:
        print(task.name, type(error).__name__, error)
    else:
        print(task.name, "sent")
"""


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    with Celery("shop", broker=redis_url, set_as_current=False) as app:
        yield app


def nothing(number: int = 0) -> None: ...


def define(app: Celery, name: str, **options: Any) -> Task:
    decorate: Any = app.task(name=name, shared=False, **options)
    task: Task = decorate(nothing)
    return task


def test_other_tasks_of_the_process_are_sent_as_ever(redis_url: str, client: Any) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SENDS],
        env={"CELERY_BROKER_URL": redis_url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    told = ran.stdout.splitlines()
    assert told[0] == "[0, 1, 2]"
    assert told[1] == "misspelt.limited sent"
    assert told[2].startswith(
        "misspelt.wrong UnknownLimitError task 'misspelt.wrong': limit 'strip'"
    )
    assert told[3].startswith("misspelt.costly CostError task 'misspelt.costly': cost 2 can never")
    assert told[4:] == ["misspelt.plain sent", "misspelt.attribute sent"]
    assert "attribute 'throttle_limit' has no effect; allowed: 'throttle', " in ran.stderr
    assert client.llen("celery") == 6
    client.flushall()


SENDERS: dict[str, Callable[[Any, Any], Any]] = {
    "delay": lambda wrong, _: wrong.delay(1),
    "apply_async": lambda wrong, _: wrong.apply_async((1,), countdown=5),
    "signature": lambda wrong, _: wrong.s(1).apply_async(),
    "chain": lambda wrong, right: chain(right.si(1), right.si(2), wrong.si(3)).delay(),
    "group": lambda wrong, _: group(wrong.s(1), wrong.s(2)).delay(),
    "chord": lambda wrong, right: chord([right.si(1)], wrong.si(2)).delay(),
    "link": lambda wrong, right: right.apply_async((1,), link=wrong.si(2)),
    "link_error": lambda wrong, right: right.apply_async((1,), link_error=[wrong.si(2)]),
    "name": lambda wrong, _: wrong.app.send_task(wrong.name, (1,)),
    "fan_out": lambda wrong, _: wrong.app.throttle.fan_out([wrong.s(1)]),
}


@pytest.mark.parametrize("how", SENDERS)
def test_it_is_raised_however_the_task_is_sent(app: Celery, client: Any, how: str) -> None:
    app.conf.update(result_backend="cache+memory://")  # for the chord
    Throttle(app, LIMITS)
    right, wrong = define(app, "right", throttle="stripe"), define(app, "wrong", throttle="strip")
    app.finalize()
    for _ in range(2):
        with pytest.raises(UnknownLimitError, match=r"^task 'wrong': limit 'strip' is not defined"):
            SENDERS[how](wrong, right)
    assert client.llen("celery") == 0
    client.flushall()  # a fan-out has a name from its beginning


def test_it_is_raised_where_tasks_run_at_once(app: Celery) -> None:
    app.conf.task_always_eager = True
    Throttle(app, LIMITS)
    wrong, plain = define(app, "wrong", throttle="strip"), define(app, "plain")
    assert plain.delay(1).successful()
    with pytest.raises(UnknownLimitError, match=r"^task 'wrong'"):
        wrong.delay(1)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("limits", {"stripe": "10/fortnight"}, "unknown unit 'fortnight'"),
        ("limits", "10/s", "throttle_limits is '10/s'"),
        ("routes", "stripe", "throttle_routes is 'stripe'"),
        ("routes", {re.compile("a"): "stripe"}, "throttle_routes has the key re.compile('a')"),
        ("routes", {"limited*": "strip"}, "throttle_routes['limited*']: limit 'strip'"),
        ("publish", "lines", "throttle_publish is 'lines'"),
        ("url", "localhost:6379", "'localhost:6379'"),
        ("leese", 5, "'throttle_leese' has no effect; write 'throttle_lease'"),
    ],
)
@pytest.mark.filterwarnings("default::celery_throttle.ThrottleWarning")
def test_a_setting_that_is_wrong_stops_no_task_without_limits(
    app: Celery, client: Any, name: str, value: Any, told: str
) -> None:
    app.conf.throttle_limits = LIMITS
    app.conf.update({f"throttle_{name}": value})
    throttle = Throttle(app)
    plain = define(app, "plain")
    plain.delay(1)
    app.send_task("plain", (2,))
    assert client.llen("celery") == 2
    client.flushall()
    with pytest.raises(ConfigurationError) as caught:
        throttle.check()
    assert told in str(caught.value)


def test_a_task_that_is_defined_anew_is_read_anew(app: Celery) -> None:
    throttle = Throttle(app, LIMITS)

    def charge(limit: str) -> Task:
        options = {"name": "charge", "throttle": limit, "run": nothing}
        task: Task = type("Charge", (app.Task,), options)()
        return task

    with pytest.raises(UnknownLimitError):
        throttle.task_limits(app.register_task(charge("strip")))
    assert throttle.task_limits(app.register_task(charge("stripe"))) is not None


# What throttle.check() lists.


def test_nothing_is_wrong(app: Celery) -> None:
    throttle = Throttle(app, LIMITS)
    define(app, "charge", throttle="stripe")
    throttle.check()


def test_one_thing_is_wrong(app: Celery) -> None:
    throttle = Throttle(app, LIMITS)
    define(app, "charge", throttle="strip")
    with pytest.raises(ConfigurationError) as caught:
        throttle.check()
    assert str(caught.value) == ("task 'charge': limit 'strip' is not defined; write 'stripe'")


@pytest.mark.filterwarnings("default::celery_throttle.ThrottleWarning")
def test_a_misspelt_throttle_stops_the_worker(app: Celery) -> None:
    throttle = Throttle(app, LIMITS)
    define(app, "charge", throtle="mail")
    with pytest.raises(ConfigurationError, match=r"'throtle' has no effect; write 'throttle'"):
        throttle.check()


def test_a_key_that_is_the_name_of_an_argument_needs_braces(app: Celery) -> None:
    throttle = Throttle(app, LIMITS)
    define(app, "charge", throttle="mail:eu:number")
    with pytest.raises(ConfigurationError, match=r"write 'mail:eu:\{number\}' for its value"):
        throttle.check()


@pytest.mark.parametrize("option", ["throttle", "throttle_cost"])
def test_options_of_a_task_are_refused_in_a_call(app: Celery, option: str) -> None:
    Throttle(app, LIMITS)
    define(app, "charge", throttle="mail")
    task: Any = app.tasks["charge"]
    options: Any = {option: "stripe"}
    ways: list[Callable[[], Any]] = [
        lambda: task.apply_async((1,), **options),
        lambda: task.s(1).set(**options).apply_async(),
        lambda: app.send_task("charge", (1,), **options),
    ]
    for send in ways:
        with pytest.raises(
            ConfigurationError, match=f"{option}='stripe' has no effect on one call"
        ):
            send()


@pytest.mark.filterwarnings("default::celery_throttle.ThrottleWarning")
def test_all_that_is_wrong_is_listed(app: Celery) -> None:
    app.conf.throttle_limits = {**LIMITS, "slow": "1/fortnight", "fast": "0/s", 5: "1/s"}
    app.conf.throttle_routes = {"routed.*": "male", "mailed.*": "mail:{tenant}"}
    app.conf.update(throttle_lease="soon", throttle_limit=5, throttle_url="http://u:secret@host")
    throttle = Throttle(app)
    define(app, "right", throttle="mail:{number}")
    define(app, "wrong", throttle="strip")
    define(app, "costly", throttle="stripe", throttle_cost=2)
    define(app, "mailed.x")
    define(app, "cots", throttle_cots=5)
    define(app, "broken", throttle="slow:{tenant}")
    with pytest.raises(ConfigurationError) as caught:
        throttle.check()
    told = str(caught.value).splitlines()
    assert told[0] == "12 mistakes in app 'shop':"
    begins = [
        "app.conf: setting 'throttle_limit' has no effect; write 'throttle_limits'",
        "limit 'slow': unknown unit 'fortnight'",
        "throttle_lease is 'soon'",
        "limit 'fast': '0/s'",
        "5 cannot name a limit",
        "'http://host' is not a server that can keep limits",
        "throttle_routes['routed.*']: limit 'male' is not defined",
        "task 'broken' has no argument 'tenant'",
        "task 'costly': cost 2 can never pass",
        "task 'cots': attribute 'throttle_cots' has no effect; write 'throttle_cost'",
        "task 'mailed.x' has no argument 'tenant'",
        "task 'wrong': limit 'strip' is not defined",
    ]
    for line, text in zip(told[1:], begins, strict=True):
        assert line.startswith(f"- {text}")
    assert "secret" not in str(caught.value)


def test_the_modules_of_tasks_are_imported(redis_url: str) -> None:
    with Celery("shop", broker=redis_url, set_as_current=False) as app:
        app.conf.include = ["tests.no_module_of_that_name"]
        throttle = Throttle(app, LIMITS)
        with pytest.raises(ModuleNotFoundError):
            throttle.check()


def test_tasks_of_another_app_are_none_of_this_apps_mistakes(app: Celery) -> None:
    with Celery("other", set_as_current=False) as other:
        Throttle(other, {"github": "1/s"})
        throttle = Throttle(app, LIMITS)
        foreign = define(app, "foreign", throttle="github")
        throttle.check()
        foreign.delay(1)
        with pytest.raises(UnknownLimitError):  # if it is to run here
            throttle.task_limits(app.tasks["foreign"])


@pytest.mark.parametrize("app", ["shop", None, Celery, object()])
def test_a_throttle_of_no_app(app: Any) -> None:
    with pytest.raises(
        ThrottleError, match=r'app = Celery\("shop"\), then Throttle\(app\)'
    ) as caught:
        Throttle(app)
    assert repr(app) in str(caught.value)


# Workers.


@pytest.mark.workers
def test_a_worker_does_not_start_and_names_all_tasks_that_are_wrong(redis_url: str) -> None:
    worker = Worker("tests.apps.misspelt", redis_url, env={"MISSPELT_SETTINGS": "1"})
    worker.start()
    try:
        assert worker.wait(100) != 0
        log = worker.log()
    finally:
        worker.close()
    for text in (
        "5 mistakes in app 'misspelt':",
        "- app.conf: setting 'throttle_leese' has no effect; write 'throttle_lease'",
        "- task 'misspelt.attribute': attribute 'throttle_limit' has no effect; ",
        "- task 'misspelt.costly': cost 2 can never pass limit 'stripe'",
        "- task 'misspelt.routed' has no argument 'nobody'; allowed: number",
        "- task 'misspelt.wrong': limit 'strip' is not defined",
    ):
        assert text in log
    assert "Traceback" not in log
