"""Fan-outs whose iterable, or whose caller, ends the call before all tasks are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from celery_throttle import StoreError
from tests.bulk.fan_out.test_fan_out import in_line, some


class OwnError(Exception):
    """An error of the code of a user."""


def sent_before(app: Any, number: int, error: BaseException) -> Iterator[Any]:
    yield from some(app, number)
    raise error


@pytest.mark.parametrize("error", [OwnError(), KeyboardInterrupt()])
def test_it_does_not_wait_for_room(app: Any, error: BaseException) -> None:
    raised: list[BaseException] = []

    def send() -> None:
        try:
            app.throttle.fan_out(sent_before(app, 5, error), "nightly", max_waiting=3)
        except BaseException as caught:  # noqa: BLE001  # it is asserted
            raised.append(caught)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(10)
    assert raised == [error]
    assert len(in_line(app)) == 3


@pytest.mark.parametrize("error", [OwnError(), KeyboardInterrupt(), StoreError("of a user")])
def test_tasks_that_were_read_join_their_lines(app: Any, error: BaseException) -> None:
    with pytest.raises(type(error)):
        app.throttle.fan_out(sent_before(app, 5, error), "nightly")
    assert len(in_line(app)) == 5


@pytest.mark.parametrize("error", [OwnError(), KeyboardInterrupt()])
def test_a_later_error_does_not_hide_it(app: Any, error: BaseException) -> None:
    def signatures() -> Iterator[Any]:
        yield from some(app, 2)
        yield app.tasks["costly"].s(5)  # more than the burst: the server refuses it
        raise error

    with pytest.raises(type(error)):
        app.throttle.fan_out(signatures(), "nightly")
    assert len(in_line(app)) == 2


def test_tasks_whose_call_is_interrupted_join_their_lines(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, calls = app.throttle.store.begin, count()

    def interrupt(call: Any, **options: Any) -> Any:
        if next(calls) == 0:
            raise KeyboardInterrupt
        return begin(call, **options)

    monkeypatch.setattr(app.throttle.store, "begin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        app.throttle.fan_out(some(app, 5), "nightly")
    assert len(in_line(app)) == 5
