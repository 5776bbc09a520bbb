"""Eager mode and ``apply()``: no worker takes part, so a task's own limits are not enforced.

What the body acquires is: it waits in place, or raises Throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttle, Throttled
from celery_throttle.clients.httpx import ThrottledTransport

Send = Callable[[Any, int], Any]


def by_apply(task: Any, number: int) -> Any:
    return task.apply((number,))


def by_delay(task: Any, number: int) -> Any:
    return task.delay(number)


@pytest.fixture(params=[by_apply, by_delay])
def send(request: pytest.FixtureRequest) -> Send:
    function: Send = request.param
    return function


def make_app(url: str, *, enabled: bool = True) -> Any:
    app = Celery("eager", broker="memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, throttle_url=url, throttle_enabled=enabled)
    limits = {"api": "1/h burst 2", "fast": "50/s", "jobs": "1 at once"}
    throttle = Throttle(app, limits)
    transport = ThrottledTransport(
        throttle["api"], transport=httpx.MockTransport(lambda _: httpx.Response(200))
    )

    @app.task(throttle="api", name="own", shared=False)
    def own(number: int) -> int:
        return number

    @app.task(name="acquires", shared=False)
    def acquires(_number: int) -> bool:
        return bool(throttle["api"].try_acquire())

    @app.task(name="waits", shared=False)
    def waits(number: int) -> int:
        throttle["fast"].acquire(max_wait=10)
        with throttle["jobs"].slot(max_wait=10):
            return number

    @app.task(name="calls", shared=False)
    def calls(_number: int) -> int:
        with httpx.Client(transport=transport) as client:
            return client.get("http://api.invalid/").status_code

    app.finalize()
    return app


@pytest.fixture(params=["server", "memory"])
def app(request: pytest.FixtureRequest) -> Iterator[Any]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    app = make_app(url)
    yield app
    app.throttle.store.close()


def test_the_limits_of_the_task_itself_are_not_enforced(app: Any, send: Send) -> None:
    assert [send(app.tasks["own"], number).get() for number in range(4)] == [0, 1, 2, 3]
    assert app.throttle["api"].peek().remaining == 2


def test_what_its_body_acquires_is(app: Any, send: Send) -> None:
    assert [send(app.tasks["acquires"], number).get() for number in range(4)] == [
        *(True, True),
        *(False, False),
    ]


def test_it_waits_in_place(app: Any, send: Send) -> None:
    assert [send(app.tasks["waits"], number).get() for number in range(3)] == [0, 1, 2]


def test_a_wrapped_client_raises_where_a_worker_would_let_the_task_wait(
    app: Any, send: Send
) -> None:
    assert [send(app.tasks["calls"], number).get() for number in range(2)] == [200, 200]
    with pytest.raises(Throttled, match="'api'"):
        send(app.tasks["calls"], 2).get()


def test_a_fan_out_needs_lines(app: Any) -> None:
    with pytest.raises(ConfigurationError, match="task_always_eager"):
        app.throttle.fan_out([app.tasks["own"].s(1)])


def test_with_limits_disabled_all_of_it_passes_and_no_server_is_asked(send: Send) -> None:
    app = make_app("redis://nowhere.invalid", enabled=False)
    for name in ("own", "acquires", "waits", "calls"):
        assert all(send(app.tasks[name], number).successful() for number in range(4))


def test_with_limits_disabled_a_fan_out_runs_in_place() -> None:
    app = make_app("redis://nowhere.invalid", enabled=False)
    fan_out = app.throttle.fan_out(app.tasks["own"].s(number) for number in range(3))
    assert [result.get() for result in fan_out.results(timeout=30)] == [0, 1, 2]
    progress = fan_out.wait(timeout=30)
    assert (progress.sent, progress.done, progress.complete) == (3, 3, True)
    assert fan_out.forecast().waiting == 0
    fan_out.pause()
    fan_out.resume()
    assert fan_out.cancel() == 0
