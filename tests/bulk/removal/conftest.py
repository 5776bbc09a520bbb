"""An app whose tasks wait in lines, without a worker: the test parks what the broker has."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_throttle import Throttle
from celery_throttle.operations.waiting import LineTasks, ParkRequest, park
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.routing import rank_of

LIMITS = {"api": "1/h", "mail": "1/h"}
QUEUES = (Queue("celery"), Queue("other", Exchange("other"), "other"))


class Site:
    """An app, its broker and its lines."""

    def __init__(self, broker: str, limits: Mapping[str, str] = LIMITS, **conf: Any) -> None:
        self.app: Any = Celery("shop", broker=broker, backend=broker, set_as_current=False)
        self.app.conf.update(task_queues=QUEUES, accept_content=["json", "pickle"], **conf)
        self.throttle = Throttle(self.app, limits, lease=3)
        define_tasks(self.app)

    def close(self) -> None:
        gc.collect()  # results say goodbye to the result backend when they are collected
        self.throttle.store.close()
        self.app.close()

    @property
    def client(self) -> Any:
        return self.app.backend.client

    def send(self, count: int, name: str = "call", *args: Any, **options: Any) -> list[str]:
        """Send tasks, and return their ids."""
        task = self.app.tasks[name]
        return [task.apply_async((*args, number), **options).id for number in range(count)]

    def at_broker(self, queue: str = "celery") -> list[Any]:
        """Take all messages from a queue of the broker, in order."""
        with self.app.connection_for_read() as connection:
            bound = Queue(queue, no_declare=True)(connection.default_channel)
            messages = list(iter(lambda: bound.get(accept=["json", "pickle"]), None))
            for message in messages:
                message.ack()
        return messages

    def park(self, queue: str = "celery") -> list[Any]:
        """Park all tasks of a queue, as a worker without a free process does."""
        messages = self.at_broker(queue)
        for message in messages:
            self.park_message(message, queue)
        return messages

    def park_message(self, message: Any, queue: str = "celery", **options: Any) -> str:
        fields = packing.task_fields(message)
        if "task" in message.headers:
            args, kwargs, _ = message.payload
        else:  # the first version of Celery's protocol
            args, kwargs = fields["args"], fields["kwargs"]
        limits = self.throttle.task_limits(self.app.tasks[fields["task"]])
        assert limits is not None
        requirement = limits.requirement(args, kwargs)
        assert requirement is not None
        task = ParkRequest(
            fields["id"],
            packing.pack(message, None, queue, received_by="worker@host"),
            requirement,
            rank=rank_of(message.properties.get("priority"), "redis"),
            identity=packing.identity(fields["id"], fields),
            **options,
        )
        queue, name = self.throttle.qualify(queue), fields["task"]
        lines = [LineTasks(queue, [task], kept=limits.kept, task_name=name)]
        plan = park(self.throttle.plans, lines, remember=60.0)
        ((outcome, *_),) = self.throttle.run_plan(plan)
        return str(outcome.decode())

    def waiting(self) -> int:
        """Return the number of tasks that wait in lines."""
        return sum(self.client.hlen(key) for key in self.client.keys("*:messages:*"))

    def claimed(self) -> int:
        """Return the number of tasks that anybody has claimed."""
        return sum(self.client.hlen(key) for key in self.client.keys("*:claims:*"))


def define_tasks(app: Any) -> None:
    @app.task(name="call", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def call(*args: Any, **kwargs: Any) -> None: ...

    @app.task(name="tenant", throttle=["api", "mail:{who}"], shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def tenant(who: str, number: int) -> None: ...

    @app.task(name="forgotten", throttle="api", ignore_result=True, shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def forgotten(number: int) -> None: ...

    @app.task(name="free", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def free(*args: Any) -> None: ...


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(redis_url: str) -> Iterator[MakeSite]:
    made: list[Site] = []

    def make(**conf: Any) -> Site:
        made.append(Site(redis_url, **conf))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()
