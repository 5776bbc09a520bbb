"""Misspelt names cause a warning with the right one; other names do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttle, ThrottleWarning
from celery_throttle.tasks.option_warnings import TASK_ATTRIBUTES
from celery_throttle.tasks.task import ThrottledTask


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", broker="redis://localhost/0", set_as_current=False) as app:
        yield app


def nothing() -> None: ...


def warned_of_task(app: Celery, **options: Any) -> list[str]:
    """Return the warnings of a task with some options, defined first and used later."""
    Throttle(app, {"api": "1/s"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decorate: Any = app.task(name="charge", shared=False, **options)
        decorate(nothing)
        app.finalize()
    found = [one for one in caught if issubclass(one.category, ThrottleWarning)]
    assert all(one.filename == __file__ for one in found), "it is where the task is"
    return [str(one.message) for one in found]


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("throtle", "api", "throttle"),
        ("trottle", ["api"], "throttle"),
        ("throttled", "api", "throttle"),
        ("throttle_max_waits", 5, "throttle_max_wait"),
        ("throtle_max_wait", 5, "throttle_max_wait"),
        ("throttle_costs", 5, "throttle_cost"),
        ("throttle_on_maxwait", "drop", "throttle_on_max_wait"),
        ("trottle_track", True, None),
        ("throttle_trak", True, "throttle_track"),
    ],
)
def test_an_attribute_that_resembles_ours(
    app: Celery, name: str, value: Any, right: str | None
) -> None:
    expected = f"task 'charge': attribute {name!r} has no effect; write {right!r}"
    assert warned_of_task(app, **{name: value}) == ([expected] if right else [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throttled_by", "api"),
        ("throttled", True),
        ("throttler", object()),
        ("throttling", "api"),
        ("bottle", "api"),
        ("rate_limit", "1/s"),
        ("track", True),
        ("max_wait", 5),
        ("throttles", nothing),
    ],
)
def test_an_attribute_of_the_users_own(app: Celery, name: str, value: Any) -> None:
    assert warned_of_task(app, **{name: value}) == []


@pytest.mark.parametrize("name", ["throttle_group", "throttle_limit"])
def test_an_attribute_in_our_name_that_resembles_none(app: Celery, name: str) -> None:
    (told,) = warned_of_task(app, **{name: "eu"})
    assert told == (
        f"task 'charge': attribute {name!r} has no effect; allowed: 'throttle', "
        "'throttle_cost', 'throttle_max_wait', 'throttle_on_max_wait', 'throttle_keep_waiting', "
        "'throttle_settles', 'throttle_restart', 'throttle_track'"
    )


def warned_of_settings(app: Celery) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        throttle = Throttle(app)
        assert not caught, "settings are read at their first use"
        _ = throttle.settings
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("name", "right", "is_mistake"),
    [
        ("throttle_limit", "throttle_limits", True),
        ("throttle_routs", "throttle_routes", True),
        ("trottle_limits", "throttle_limits", False),
        ("throtle_url", "throttle_url", False),
        ("THROTTLE_LIMITS", "throttle_limits", False),  # Celery does not read it
    ],
)
def test_a_setting_that_resembles_ours(
    app: Celery,
    name: str,
    right: str,
    is_mistake: bool,  # noqa: FBT001  # for a worker's start
) -> None:
    app.conf.update({name: 5})
    told = f"app.conf: setting {name!r} has no effect; write {right!r}"
    assert warned_of_settings(app) == [told]
    if is_mistake:
        with pytest.raises(ConfigurationError, match=right):
            app.throttle.check()  # type: ignore[attr-defined]  # Throttle() puts it there
    else:
        app.throttle.check()  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("name", sorted(TASK_ATTRIBUTES))
def test_an_attribute_of_tasks_as_a_setting(app: Celery, name: str) -> None:
    assert [each for each in vars(ThrottledTask) if each.startswith("throttle")] == [
        *TASK_ATTRIBUTES
    ]
    app.conf.update({name: 5})
    advice = f"it is an attribute of tasks; write @app.task({name}=...)"
    assert warned_of_settings(app) == [f"app.conf: setting {name!r} has no effect; {advice}"]


def test_settings_of_a_module_with_a_namespace(app: Celery) -> None:
    class Module:
        CELERY_THROTTLE_LIMITS = {"api": "1/s"}  # noqa: RUF012  # as settings modules do
        CELERY_THROTTLE_LIMIT = 5
        CELERY_THROTLE_URL = "redis://localhost/1"
        THROTTLE_URL = "of another package"
        THROTTLE_RATES = "of another package"

    app.config_from_object(Module, namespace="CELERY")
    assert warned_of_settings(app) == [
        "app.conf: setting 'CELERY_THROTLE_URL' has no effect; write 'CELERY_THROTTLE_URL'",
        "app.conf: setting 'CELERY_THROTTLE_LIMIT' has no effect; write 'CELERY_THROTTLE_LIMITS'",
    ]


def test_settings_that_are_right_and_celerys_own(app: Celery) -> None:
    app.conf.update(throttle_limits={"api": "1/s"}, task_annotations={}, worker_concurrency=1)
    assert warned_of_settings(app) == []
