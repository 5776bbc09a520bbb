"""The contracts with what is not public: each internal is there, and does what we need of it.

For each version of Celery, and for its pre-releases: make matrix ARGS="-s celery prerelease".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.pool import ApplyResult
from celery import Celery, _state
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.worker import control, state
from celery.worker.consumer import Consumer
from celery.worker.request import Request, create_request_cls  # type: ignore[attr-defined]  # not in the stubs
from celery.worker.strategy import default
from kombu import Connection, Queue
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.common import QoS

from celery_throttle.worker.hooks import remote_control
from celery_throttle.worker.hooks.internals import INTERNALS, find_missing
from tests.worker.conftest import SIZES
from tests.workers import StartWorker

BROKEN = "Limits may not hold"


@pytest.fixture
def app() -> Iterator[Any]:
    with Celery("contracts", broker="memory://", set_as_current=False) as app:
        yield app


@pytest.fixture
def controller(app: Any) -> Iterator[Any]:
    """A worker that was made, and not started."""
    yield app.WorkController(pool="solo", concurrency=1)
    # A worker with this pool takes its process for a task, in which no result may be awaited.
    _state._set_task_join_will_block(False)  # type: ignore[attr-defined]  # noqa: FBT003


def nothing() -> None:
    """The body of a task."""


def test_each_internal_has_a_contract() -> None:
    contracts = {name.removeprefix("test_contract_of_the_") for name in globals()}
    assert {internal.name.replace(" ", "_") for internal in INTERNALS} <= contracts
    assert len(INTERNALS) <= 12  # another one is a reason to look for a public way


def test_an_internal_that_is_gone_is_found() -> None:
    for internal in INTERNALS:
        assert list(find_missing(internal, None)) == []
    semaphore = next(internal for internal in INTERNALS if internal.name == "semaphore")
    consumer = SimpleNamespace(controller=SimpleNamespace(semaphore=SimpleNamespace(value=1)))
    assert list(find_missing(semaphore, consumer)) == [
        "consumer.controller.semaphore._waiting",
        "consumer.controller.semaphore.initial_value",
    ]


@pytest.mark.workers
@pytest.mark.timeout(180)
def test_a_worker_finds_all_of_them(redis_url: str, start_worker: StartWorker, pool: str) -> None:
    env = {"THROTTLE_URL": redis_url}
    worker = start_worker(
        "tests.apps.apart", redis_url, pool=pool, concurrency=SIZES[pool], env=env
    )
    log = worker.log()
    assert "Limits are decided by" in log
    assert BROKEN not in log


def test_contract_of_the_request(app: Any, controller: Any) -> None:
    """Celery overrides these two methods, and a revoked task gives its process back."""
    task = app.task(nothing, name="nothing")
    made = create_request_cls(Request, task, controller.pool, "here", None)
    assert {"execute_using_pool", "on_success"} <= vars(made).keys()
    assert issubclass(made, Request)
    released: list[bool] = []
    controller._quick_release = lambda: released.append(True)

    class Revoked:
        def execute_using_pool(self, _pool: Any) -> None:
            raise TaskRevokedError

    controller._process_task(Revoked())
    assert released == [True]


def test_contract_of_the_semaphore() -> None:
    """It queues a callback with its arguments while it has no permit, and hands permits on."""
    semaphore: Any = LaxBoundedSemaphore(1)
    called: list[str] = []
    for name in ("first", "second"):
        semaphore.acquire(called.append, name)
    assert (called, semaphore.value, semaphore.initial_value) == (["first"], 0, 1)
    assert [(function, args) for function, args, _ in semaphore._waiting] == [
        (called.append, ("second",))
    ]
    semaphore.release()
    assert (called, semaphore.value) == (["first", "second"], 0)


def test_contract_of_the_process_pool() -> None:
    """A job is in the pool's cache from when it is handed over, and says whether it has begun."""
    cache: dict[int, Any] = {}
    job: Any = ApplyResult(cache, None)
    assert list(cache.values()) == [job]
    assert (job._accepted, job._worker_lost, job._write_to) == (False, None, None)
    job._ack(None, 0.0, 1, None)
    assert job._accepted


def test_contract_of_the_greenlet_pool() -> None:
    gevent = pytest.importorskip("gevent.pool")
    assert gevent.Pool(3).size == 3


def test_contract_of_the_event_loop() -> None:
    """Its loop calls ``fire_timers`` by the instance; timers are in a heap, the next first."""
    hub: Any = Hub()
    try:
        hub.call_later(50, lambda: None)
        first = hub.call_later(5, lambda: None)
        assert hub.timer._queue[0].entry is first
        assert 0 < hub.fire_timers(min_delay=1, propagate=()) <= 50
        assert not hub._ready
        hub.call_soon(lambda: None)
        assert len(hub._ready) == 1
    finally:
        hub.close()


def test_contract_of_the_rate_limit() -> None:
    """A strategy looks up once where it puts the requests of a task with a ``rate_limit``."""
    assert {"_limit_task", "_limit_post_eta", "task_buckets"} <= {*default.__code__.co_names}
    assert callable(Consumer.apply_eta_task)


def test_contract_of_the_strategies(app: Any) -> None:
    """The consumer looks each strategy up by name, and sets them anew with each connection."""
    assert "strategies" in Consumer.update_strategies.__code__.co_names
    assert "start_strategy" in Consumer.update_strategies.__code__.co_names
    assert callable(app.Task.start_strategy)
    assert callable(state.task_reserved)


def test_contract_of_the_event_dispatcher(app: Any) -> None:
    """Events of a group that is buffered are sent together, others at once."""
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, buffer_group=["task"])
        assert "task" in dispatcher.buffer_group
        assert dispatcher.groups == set()
        dispatcher.send("task-received", uuid="1")
        assert dispatcher._group_buffer["task"]
        dispatcher.close()


def test_contract_of_the_broker_consumer() -> None:
    """It notes the tag by which it consumes each queue, and takes a queue on with a new tag."""
    with Connection("memory://") as connection:
        queue = Queue("contracts")
        consumer: Any = connection.Consumer([queue], callbacks=[lambda *_: None])
        consumer.consume()
        first = consumer._active_tags.pop("contracts")
        second = consumer._basic_consume(consumer.queues[0], no_ack=False)
        assert consumer._active_tags == {"contracts": second}
        assert second != first
        counts: list[int] = []

        def count(prefetch_count: int) -> None:
            counts.append(prefetch_count)

        qos = QoS(count, 4)
        qos.update()
        assert (qos.prev, counts) == (4, [4])


def test_contract_of_the_app_registry(app: Any) -> None:
    """Decorators make tasks by a method of the instance; a request takes a field of its class."""
    made: list[Any] = []
    create: Callable[..., Any] = app._task_from_fun

    def create_task(*args: Any, **options: Any) -> Any:
        made.append(args)
        return create(*args, **options)

    app._task_from_fun = create_task
    app.task(nothing, name="lazy", lazy=False)
    assert len(made) == 1
    assert "lazy" in app._tasks
    assert app in _state._get_active_apps()  # type: ignore[attr-defined]  # not in the stubs
    assert _state.get_current_worker_task() is None
    assert vars(Context(throttle_units=()))["throttle_units"] == ()


def test_contract_of_the_remote_control() -> None:
    """A command that is registered later takes the place of Celery's."""
    assert control.Panel.data["ping"] is remote_control.ping


def test_contract_of_the_client_socket(client: Any) -> None:
    """A connection has one socket, and takes a command that is packed already."""

    connection = client.connection_pool.make_connection()
    connection.connect()
    connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"], check_health=False)
    assert connection._sock.fileno() > 0
    assert connection.can_read(5)
    connection.read_response()
    connection.disconnect()
