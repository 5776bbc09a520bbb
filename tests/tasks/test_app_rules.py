"""The rules file of an app, in a process that is no worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttle, UnknownLimitError
from celery_throttle.limits.limit import Limit
from celery_throttle.tasks import app_rules

RULES = """
[limits]
api = "1/h burst 5"
code = "2/h burst 2"
"api:gold" = "1/h burst 7"
[routes]
"by.pattern.*" = "api"
"by.name" = ["api", "code"]
"""

MakeThrottle = Callable[..., Throttle]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def throttle(path: Path) -> Throttle:
    return make_throttle(path)


@pytest.fixture(autouse=True)
def _read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_rules, "POLL_SECONDS", 0.0)


def make_throttle(path: Path, **settings: Any) -> Throttle:
    app = Celery("shop", broker="memory://", set_as_current=False)
    settings = {"url": "memory://", "rules": path, **settings}
    return Throttle(app, settings.pop("limits", {"code": "1/h"}), **settings)


def add_task(throttle: Throttle, name: str, limits: Any = None) -> Any:
    @throttle.app.task(name=name, shared=False, lazy=False, throttle=limits)
    def task(number: int = 0) -> None: ...

    return task


def names(throttle: Throttle, task: Any) -> list[str]:
    """The limits of a task."""
    limits = throttle.task_limits(task)
    return [template.name for template in limits.templates] if limits else []


def test_tasks_may_name_limits_of_the_file(throttle: Throttle) -> None:
    assert names(throttle, add_task(throttle, "one", limits=["api", "code"])) == ["api", "code"]
    assert throttle.limits["code"] == (Limit.parse("2/h burst 2"),)
    assert throttle.code_limits["code"] == (Limit.parse("1/h"),)
    throttle.check()


def test_routes_of_the_file_go_before_those_of_the_code(path: Path) -> None:
    routes = {"by.pattern.exact": "code", "by.code": "code", "own": "code"}
    throttle = make_throttle(path, routes=routes)
    assert names(throttle, add_task(throttle, "by.pattern.exact")) == ["api"]
    assert names(throttle, add_task(throttle, "by.name")) == ["api", "code"]
    assert names(throttle, add_task(throttle, "by.code")) == ["code"]
    assert names(throttle, add_task(throttle, "own", limits="api")) == ["api"]
    assert names(throttle, add_task(throttle, "free")) == []


def test_routes_of_the_file_may_have_costs(path: Path) -> None:
    path.write_text("""[limits]
api = "10/s burst 10"
[routes]
"send.*" = { limits = ["api:{number}", "code"], cost = { api = "len({to})" } }
""")
    throttle = make_throttle(path)

    @throttle.app.task(name="send.mail", shared=False, lazy=False)
    def send(to: list[str], number: int = 0) -> None: ...

    limits = throttle.task_limits(send)
    assert limits is not None
    requirement = limits.requirement((["a", "b"],), {"number": 7})
    assert requirement is not None
    assert requirement.costs == (2_000_000, 1_000_000)


def test_a_change_of_the_file_is_a_change_of_the_limits_of_tasks(
    path: Path, throttle: Throttle
) -> None:
    task = add_task(throttle, "by.name")
    assert names(throttle, task) == ["api", "code"]
    assert throttle.task_limits(task) is throttle.task_limits(task)
    path.write_text(RULES.replace('["api", "code"]', '"code"'))
    throttle.task_limits(task)  # the first look: it may still be written
    assert names(throttle, task) == ["code"]


def test_a_wrong_file_leaves_the_limits_as_they_are(
    path: Path, throttle: Throttle, caplog: pytest.LogCaptureFixture
) -> None:
    task = add_task(throttle, "by.name")
    assert names(throttle, task) == ["api", "code"]
    path.write_text("wrong")
    for _ in range(3):
        assert names(throttle, task) == ["api", "code"]
    assert caplog.text.count("limits.toml:1: 'wrong' is not TOML") == 1


def test_check_reports_all_mistakes_in_the_file(path: Path) -> None:
    path.write_text('[limits]\napi = "1/x"\n"b ad" = "1/s"\n')
    throttle = make_throttle(path)
    add_task(throttle, "one", limits="api")  # no mistake: the file might define it
    with pytest.raises(ConfigurationError) as caught:
        throttle.check()
    first, second, third = str(caught.value).splitlines()
    assert first == "2 mistakes in app 'shop':"
    assert second.startswith(f"- {path}:2: limit 'api': unknown unit 'x'")
    assert third.startswith(f"- {path}:3: ")


def test_check_reports_tasks_that_fail_by_the_routes_of_the_file(path: Path) -> None:
    throttle = make_throttle(path)
    add_task(throttle, "one")
    path.write_text(f'{RULES}one = "api:{{tenant}}"')
    with pytest.raises(ConfigurationError, match=r"limits\.toml: task 'one' has no argument"):
        throttle.check()


def test_an_unknown_limit_is_an_error_if_the_file_could_be_read(throttle: Throttle) -> None:
    task = add_task(throttle, "one", limits="apo")
    with pytest.raises(UnknownLimitError, match="limit 'apo' is not defined"):
        task.delay()


def test_a_task_is_sent_if_the_file_that_may_define_its_limit_is_missing(path: Path) -> None:
    throttle = make_throttle(path.with_name("missing"))
    add_task(throttle, "one", limits="api").delay()
    with pytest.raises(ConfigurationError, match="missing: the file cannot be read"):
        throttle.check()


def test_the_path_must_be_one(path: Path) -> None:
    assert make_throttle(path).settings.rules == str(path)
    with pytest.raises(ConfigurationError, match="throttle_rules is 5: it must be the path"):
        _ = make_throttle(5).settings.rules  # type: ignore[arg-type]  # the mistake


def test_limits_in_memory_are_those_of_the_file(throttle: Throttle) -> None:
    assert throttle["code"].peek().remaining == 2
    assert throttle["api"].try_acquire(5)
    assert not throttle["api"].try_acquire()
    assert throttle["api", "gold"].try_acquire(7)
