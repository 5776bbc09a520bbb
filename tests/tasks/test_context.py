"""Limits requested in a task body: units that the task holds are used first."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state
from celery.app.task import Context
from celery.exceptions import Ignore
from celery.signals import task_postrun

from celery_throttle import (
    BlockingWaitError,
    Decision,
    SentRequestsError,
    StoreUnavailableError,
    Throttle,
    Throttled,
    wrap,
)
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.limits.cost import MILLION
from celery_throttle.operations.acquire import Taken
from celery_throttle.tasks.context import (
    SETTLES,
    UNITS_FIELD,
    current_run,
    return_unused_units,
)
from celery_throttle.tasks.step_out import Item, TaskThrottled
from celery_throttle.worker.admission.request_limits import (
    limits_of,
    pass_units,
    requirement_of,
    set_requested,
)
from celery_throttle.worker.task_state import TaskState

LIMITS = {
    "api": "1/h burst 3",
    "one": "1/h",
    "many": "1/h burst 30",
    "pool": "1 at once",
    "fast": "1000/s",
    "slow": "5/s burst 2",
}


@pytest.fixture
def throttle(redis_url: str) -> Iterator[Throttle]:
    app = Celery("inside", broker=redis_url, set_as_current=False)
    throttle = Throttle(app, LIMITS, url=redis_url)
    return_unused_units(throttle)
    yield throttle
    task_postrun.disconnect(dispatch_uid=f"throttle units {id(throttle)}")
    throttle.store.close()


def _nothing() -> None: ...


class Running:
    """Runs a task of the app as a worker does, with some units."""

    def __init__(
        self,
        throttle: Throttle,
        *given: Item | Taken,
        plain: bool = False,
        restart: bool = False,
    ) -> None:
        app: Any = throttle.app
        options = {"throttle_restart": True} if restart else {}
        self._task: Any = app.task(name="running", shared=False, **options)(_nothing)
        self._given = None if plain else given

    def __enter__(self) -> None:
        self._stack: Any = vars(_state)["_task_stack"]  # as Celery's tracer does
        self._stack.push(self._task)
        self._task.request_stack.push(Context({UNITS_FIELD: self._given}, called_directly=False))

    def __exit__(self, *_: object) -> None:
        task_postrun.send(self._task, task=self._task)
        self._task.request_stack.pop()
        self._stack.pop()


def unit(name: str, units: float = 1, key: str | None = None) -> Item:
    return name, key, round(units * MILLION)


def test_outside_a_task_and_where_no_worker_takes_it_back(throttle: Throttle) -> None:
    assert current_run(throttle) is None
    throttle["one"].try_acquire()
    with Running(throttle, plain=True), pytest.raises(Throttled) as caught:
        throttle["one"].acquire(max_wait=0)
    assert type(caught.value) is Throttled


def test_a_refusal_steps_aside_and_tells_what_was_asked_for(throttle: Throttle) -> None:
    throttle["one"].try_acquire()
    with Running(throttle), pytest.raises(TaskThrottled) as caught:
        throttle.acquire(["one", throttle["api", "k"]], {"api": 2}, max_wait=0)
    error: TaskThrottled = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # as it comes to the worker
    assert issubclass(TaskThrottled, Ignore)
    assert error.requested == (unit("one"), unit("api", 2, "k"))
    assert (error.limit, error.key) == ("one", None)
    assert (error.retry_after or 0) > 3500


def test_try_acquire_uses_the_units_of_the_run_and_steps_out_for_no_refusal(
    throttle: Throttle,
) -> None:
    for limit in (throttle["one"], throttle["one", "a"]):
        limit.acquire()
    with Running(throttle, unit("one"), unit("api")):
        assert not throttle.try_acquire(["one", throttle["one", "a"]])
        decision = throttle.try_acquire(["one", "api"])
        assert (decision.allowed, decision.granted) == (True, 1)
        assert throttle["api"].peek(0).remaining == 3
        assert not throttle["one"].try_acquire()
        assert throttle["api"].try_acquire(2).granted == 2
        assert throttle["api"].peek(0).remaining == 1


def test_what_it_was_given_is_used_once(throttle: Throttle) -> None:
    with Running(throttle, unit("one"), unit("api", 2)):
        assert throttle["one"].acquire(max_wait=0).granted == 1
        assert throttle["api"].acquire(2, max_wait=0).granted == 2
        assert throttle["api"].peek(0).remaining == 3
        throttle["api"].acquire(max_wait=0)
        assert throttle["api"].peek(0).remaining == 2


def test_of_several_it_asks_for_what_it_lacks(throttle: Throttle) -> None:
    throttle["one"].try_acquire()
    with Running(throttle, unit("one")):
        throttle.acquire(["one", "api"], max_wait=0)
        assert throttle["api"].peek(0).remaining == 2


def test_a_refused_run_waits_for_the_whole_requirement_and_keeps_its_units(
    throttle: Throttle,
) -> None:
    throttle["one"].try_acquire()
    with Running(throttle, unit("api")):
        with pytest.raises(TaskThrottled) as caught:
            throttle.acquire(["one", "api"], max_wait=0)
        assert caught.value.requested == (unit("one"), unit("api"))
        throttle["api"].acquire(max_wait=0)
        assert throttle["api"].peek(0).remaining == 3


def test_a_run_keeps_its_units_if_the_server_fails(
    throttle: Throttle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> Any:
        raise StoreUnavailableError("gone")

    throttle.register()
    with Running(throttle, unit("api")):
        with monkeypatch.context() as lost:
            lost.setattr(throttle.store, "run", fail)
            with pytest.raises(StoreUnavailableError):
                throttle.acquire(["one", "api"], max_wait=0)
        throttle["api"].acquire(max_wait=0)
        assert throttle["api"].peek(0).remaining == 3


def test_a_run_that_has_sent_a_request_does_not_step_out(throttle: Throttle) -> None:
    """It waits in place, or fails: with units from the server, or those that it began with."""
    throttle["one"].acquire()
    for units in ([], [unit("api")]):
        throttle["slow"].reset()
        began = time.monotonic()  # before the burst is used: on a slow machine, units are back soon
        throttle["slow"].acquire(2)
        with Running(throttle, *units):
            throttle["api"].acquire(max_wait=0)
            throttle["slow"].acquire(max_wait=0)
            assert time.monotonic() - began > 0.1
            with pytest.raises(SentRequestsError) as caught:
                throttle["one"].acquire(max_wait=0)
            error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # as it comes to the worker
            assert (error.limit, error.max_wait) == ("one", 60)
            assert str(error).startswith("limit 'one' refused; ")
            assert "throttle_max_wait_in_place allows a wait of 60 s" in str(error)


def test_how_long_a_run_waits_in_place_is_a_setting(redis_url: str) -> None:
    app = Celery("inside", broker=redis_url, set_as_current=False)
    throttle = Throttle(app, LIMITS, url=redis_url, max_wait_in_place=0.1)
    with Running(throttle):
        throttle["slow"].acquire(2)
        with pytest.raises(SentRequestsError):
            throttle["slow"].acquire(2)
        throttle["slow"].acquire(2, max_wait=1)
    throttle.store.close()


def test_a_task_may_say_that_it_starts_again_after_a_request(throttle: Throttle) -> None:
    throttle["one"].acquire()
    with Running(throttle, restart=True):
        throttle["api"].acquire(max_wait=0)
        with pytest.raises(TaskThrottled):
            throttle["one"].acquire(max_wait=0)


def test_a_task_that_may_start_again_steps_out_instead_of_sending_a_refused_request_again(
    throttle: Throttle,
) -> None:
    def send() -> None:
        raise OSError

    refused = ApiAnswer(429, {"retry-after": "0.01"})
    call = wrap(throttle["one"], send, answer=lambda _: refused, retry_refused=1)
    with Running(throttle, restart=True):
        throttle["api"].acquire(max_wait=0)
        with pytest.raises(TaskThrottled):
            call()


def test_a_run_steps_out_for_a_limit_once(throttle: Throttle) -> None:
    """The next run began with units of it; if it needs others, it waits for them in place."""
    throttle["slow"].acquire(2)
    with Running(throttle, unit("slow")):
        assert throttle["slow"].acquire(2, max_wait=0)
    throttle["one"].acquire()
    with Running(throttle, unit("one", 0.5)):
        with pytest.raises(Throttled) as caught:
            throttle["one"].acquire(max_wait=0)
        assert type(caught.value) is Throttled


async def test_calls_under_way_step_out_if_none_of_them_can_send(throttle: Throttle) -> None:
    await throttle["one"].aacquire()
    with Running(throttle):
        calls = (throttle[name].aacquire(max_wait=0) for name in ("one", "one"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [TaskThrottled, TaskThrottled]
    await throttle.store.aclose()


async def test_a_run_does_not_step_out_while_another_call_may_send(throttle: Throttle) -> None:
    await throttle["one"].aacquire()
    await throttle["slow"].aacquire(2)
    with Running(throttle):
        results = await asyncio.gather(
            throttle["one"].aacquire(max_wait=0),  # for too long
            throttle["slow"].aacquire(max_wait=5),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [SentRequestsError, Decision]
    await throttle.store.aclose()


async def test_a_blocking_call_in_a_loop_does_not_wait_in_place(throttle: Throttle) -> None:
    with Running(throttle, unit("one")):
        await throttle["slow"].aacquire(2)  # it has sent a request
        with pytest.raises(BlockingWaitError):
            throttle.acquire(["one", "slow"])
        assert throttle["one"].try_acquire()  # the unit of the run is not lost
        assert (await throttle["slow"].aacquire()).allowed
        await throttle.store.aclose()


def test_a_slot_it_holds_is_used_one_after_the_other(throttle: Throttle) -> None:
    with Running(throttle, unit("pool")):
        for _ in range(3):
            with throttle["pool"].slot():
                pass
        assert throttle["pool"].peek(0).remaining == 1  # nobody took one from the server


def test_a_slot_it_holds_beside_one_that_it_asks_for(throttle: Throttle) -> None:
    with Running(throttle, unit("pool")):
        for _ in range(2):
            with throttle.slot(["pool", throttle["pool", "other"]]):
                assert throttle["pool", "other"].peek(0).remaining == 0
            assert throttle["pool", "other"].peek(0).remaining == 1
        assert throttle["pool"].peek(0).remaining == 1


def test_more_than_it_may_have_at_once_is_waited_for(throttle: Throttle) -> None:
    """And not given up: no run of it could have more from its start."""
    with Running(throttle, unit("fast")):
        for _ in range(20):
            throttle["fast"].acquire(max_wait=0)


async def test_for_asyncio(throttle: Throttle) -> None:
    with Running(throttle, unit("one"), unit("pool")):
        await throttle["one"].aacquire(max_wait=0)
        async with throttle["pool"].slot():
            pass
    limit = throttle["one", "other"]
    await limit.atry_acquire()
    with Running(throttle), pytest.raises(TaskThrottled):
        await limit.aacquire(max_wait=0)
    await throttle.store.aclose()


async def test_what_it_was_given_is_for_one_of_several_at_once(throttle: Throttle) -> None:
    with Running(throttle, unit("api")):
        calls = (throttle.aacquire(["api", throttle["one", "a"]], max_wait=0) for _ in range(3))
        results = await asyncio.gather(*calls, return_exceptions=True)
    names = sorted(type(result).__name__ for result in results)
    assert names == ["Decision", "SentRequestsError", "SentRequestsError"]
    await throttle.store.aclose()


def take(throttle: Throttle, name: str, units: float, key: str | None = None) -> Taken:
    """Take units as a line does for a run that settles."""
    limit = throttle[name] if key is None else throttle[name, key]
    requirement = throttle.require([limit], units)
    plan = throttle.acquire_plan(requirement, 0, mode="reserve")
    (marks,) = throttle.run_plan(plan).marks
    return Taken(name, key, requirement.costs[0], tuple(marks))


@pytest.mark.parametrize(
    ("begins_with", "estimate", "actual"),
    [(30, 30, 10), (20, 30, 10), (30, 10, 5), (10, 30, 0), (20, 20, 30)],
)
def test_units_that_it_was_given_are_settled(
    throttle: Throttle, begins_with: int, estimate: int, actual: int
) -> None:
    """Whatever the next run estimates: the difference is taken, or given back at its end."""
    with Running(throttle, take(throttle, "many", begins_with)):
        reserved = throttle["many"].reserve(estimate)
        assert throttle["many"].peek(0).remaining == 30 - max(begins_with, estimate)
        reserved.settle(actual)
    assert throttle["many"].peek(0).remaining == 30 - actual


def test_units_that_it_was_given_serve_several_calls(throttle: Throttle) -> None:
    with Running(throttle, take(throttle, "many", 30), take(throttle, "one", 1, "k")):
        for actual in (5, 3):
            throttle["many"].reserve(10).settle(actual)
        assert throttle["many"].peek(0).remaining == 12
    assert throttle["many"].peek(0).remaining == 22
    assert throttle["one", "k"].peek(0).remaining == 1


def test_units_that_it_was_given_and_no_call_used_are_given_back(throttle: Throttle) -> None:
    with Running(throttle, take(throttle, "api", 3)):
        pass
    assert throttle["api"].peek(0).remaining == 3
    with Running(throttle, unit("api", 3)):  # of which nobody knows when they were taken
        throttle["api"].acquire(2)
    assert throttle["api"].peek(0).remaining == 3  # as before the run: it took none itself


def test_a_refused_run_says_that_it_settles(throttle: Throttle) -> None:
    throttle["one"].acquire()
    with Running(throttle), pytest.raises(TaskThrottled) as caught:
        throttle["one"].reserve(1)
    assert caught.value.requested == (unit("one"), (SETTLES, None, 1))


def test_an_estimate_it_was_given_can_only_be_owed(throttle: Throttle) -> None:
    with Running(throttle, unit("api"), unit("api")):
        throttle["api"].reserve(1).settle(0)
        assert throttle["api"].peek(0).remaining == 3
        throttle["api"].reserve(1).settle(2)
        assert throttle["api"].peek(0).remaining == 2


class Request:
    """A request as far as its headers go."""

    def __init__(self, header: Any) -> None:
        self.request_dict = {"throttle_state": {"requested": header}}
        self.message = SimpleNamespace()
        self.task = SimpleNamespace(name="shop.charge")
        self.throttle_state = TaskState(self)


@pytest.mark.parametrize(
    "header",
    [
        None,
        7,
        "api",
        ["api"],
        [["api", None]],
        [["api", None, 0]],
        [["api", 7, 1]],
        [["no name", None, 1]],
        [["api", None, "x"]],
        [[None, None, 1]],
        {"api": 1},
    ],
)
def test_a_header_that_is_none_of_ours_is_ignored(header: Any) -> None:
    request = Request(header)
    assert request.throttle_state.requested == ()
    assert request.request_dict == {}  # and no task sees it
    assert request.throttle_state.message_headers() == {}


@pytest.fixture
def joined(throttle: Throttle) -> Any:
    """A request of a task with two limits, which has met two before."""
    app: Any = throttle.app
    app.task(name="joined", shared=False, throttle=["one", "pool"])(_nothing)
    app.finalize()
    request: Any = Request([("api", None, 2 * MILLION), ("pool", None, MILLION)])
    request.task, request.app, request.args, request.kwargs = app.tasks["joined"], app, (), {}
    return request


def test_a_task_waits_for_the_limits_that_refused_as_well(throttle: Throttle, joined: Any) -> None:
    """Not for more of a limit that it declares: it has that from its start."""
    set_requested(joined, [unit("api", 2), unit("one"), unit("pool", key="k")])
    limits = limits_of(throttle, joined)
    assert limits is not None
    requirement = requirement_of(limits, joined)
    both = zip(requirement.refs, requirement.costs, strict=True)
    costs = {throttle.keys.field(ref): cost // MILLION for ref, cost in both}
    assert costs == {"one": 1, "pool": 1, "api": 2, "pool:k": 1}
    assert [requirement.refs[place].name for place in limits.slots] == ["pool", "pool"]
    pass_units(joined)
    given = [(name, key, cost // MILLION) for name, key, cost in joined.request_dict[UNITS_FIELD]]
    assert given == [("one", None, 1), ("pool", None, 1), ("api", None, 2), ("pool", "k", 1)]


def test_a_task_waits_for_the_limits_of_its_last_run_only(throttle: Throttle, joined: Any) -> None:
    assert joined.throttle_state.requested == (unit("api", 2), unit("pool"))
    for key in ("a", "b"):
        set_requested(joined, [unit("api", key=key)])
        assert joined.throttle_state.message_headers() == {
            "throttle_state": {"requested": (unit("api", key=key),)}
        }
        limits = limits_of(throttle, joined)
        assert limits is not None
        refs = requirement_of(limits, joined).refs
        assert [throttle.keys.field(ref) for ref in refs] == ["one", "pool", f"api:{key}"]


def test_a_long_pause_is_not_waited_for_in_place(throttle: Throttle) -> None:
    with Running(throttle, unit("fast")):
        throttle["fast"].acquire(max_wait=0)
        throttle["fast"].pause(300)
        with pytest.raises(SentRequestsError):
            throttle["fast"].acquire(max_wait=0)


def test_an_estimate_of_which_a_part_was_given_is_settled(throttle: Throttle) -> None:
    throttle.try_acquire(["api", throttle["api", "k"]])
    with Running(throttle, unit("api")):
        reserved = throttle.reserve([throttle["api", "k"], "api"], {"api": 1})
        assert throttle["api", "k"].peek(0).remaining == 1
        reserved.settle({"api": 2})
    assert throttle["api", "k"].peek(0).remaining == 0
    assert throttle["api"].peek(0).remaining == 1
    with Running(throttle, unit("api")):
        throttle["api", "other"].try_acquire()
        throttle.reserve(["api", throttle["api", "other"]], 1).settle(0)
    assert throttle["api", "other"].peek(0).remaining == 2
