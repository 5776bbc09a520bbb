"""Messages in lines equal those that Celery sends, and that a worker parks."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery, Task, signals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.serialization import register, unregister
from pydantic import BaseModel

from celery_throttle import FanOutError, Throttle
from celery_throttle.bulk.fan_out.entries import EntryBuilder
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import fan_out_ref
from celery_throttle.tasks import app_rules
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.publishing import TRANSPORT_PROPERTIES
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER
from celery_throttle.worker.claim import Claim
from tests.bulk.fan_out.conftest import MakeApp

LATER = datetime(2100, 1, 1, tzinfo=timezone.utc)
CLAIM: Claim = None  # type: ignore[assignment]  # no test settles it

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 7},
    "queue": {"queue": "other"},
    "exchange": {"exchange": "wide", "routing_key": "news.eu"},
    "expires": {"expires": LATER},
    "serializer": {"serializer": "pickle"},
    "compression": {"compression": "gzip"},
    "limits of time": {"time_limit": 10, "soft_time_limit": 5},
    "headers": {"headers": {"trace": "abc"}, "shadow": "other name"},
    "results": {"ignore_result": True, "reply_to": "somebody"},
    "delivery": {"delivery_mode": 1},
    "link": {"link": {"task": "free", "args": [], "kwargs": {}, "options": {}}},
    "stamps": {"stamped_headers": ["who"], "who": ["me"]},
}
QUEUES = (
    Queue("celery"),
    Queue("other", Exchange("other"), "other"),
    Queue("news", Exchange("wide", type="topic"), "news.eu"),
)


def describe(message: Any) -> dict[str, Any]:
    """Return what a worker gets of a message, from the broker or a line."""
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in TRANSPORT_PROPERTIES
    }
    if "expiration" in properties:  # in milliseconds from when it was sent
        properties["expiration"] = round(int(properties["expiration"]) / 1e6)
    return {
        "headers": dict(message.headers),
        "properties": properties,
        "exchange": message.delivery_info["exchange"],
        "routing_key": message.delivery_info["routing_key"],
        "content": (message.content_type, message.content_encoding),
        "body": message.body,
        "payload": message.payload,
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_what_celery_sends(make_app: MakeApp, options: dict[str, Any]) -> None:
    app = make_app(task_queues=QUEUES, accept_content=["json", "pickle"])
    task = app.tasks["one"]
    signature = task.s(1, text="ä").set(task_id="an id", **options)
    queue = {"exchange": "news", "queue": "other"}.get(next(iter(options), ""), "celery")

    entry = EntryBuilder(app.throttle, "nightly").build(0, signature)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        for each in QUEUES:
            each(channel).declare()
        more = {**(options.get("headers") or {}), FAN_OUT_HEADER: "nightly"}
        signature.apply_async(headers=more)
        sent: Any = channel.basic_get(queue, no_ack=True)
        sent.accept = app.amqp.TaskConsumer(channel, accept=["json", "pickle"]).accept
        found: Any = packing.unpack(entry.packed, sent.accept, CLAIM)
        assert describe(found) == describe(sent)
    assert entry.destination.queue == f"redis/0/{queue}"


@pytest.mark.parametrize(("options", "kind"), [({}, str), ({"compression": "gzip"}, bytes)])
def test_with_rabbitmq_bodies_are_text_unless_they_are_compressed(
    options: dict[str, Any], kind: type
) -> None:
    app: Any = Celery("own", broker="amqp://127.0.0.1:1//", set_as_current=False)
    Throttle(app, {"api": "1/h"}, url="redis://127.0.0.1:1/0")

    @app.task(throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def one(number: int) -> None: ...

    builder = EntryBuilder(app.throttle, "nightly")
    for number in range(3):  # the last one by a template
        entry = builder.build(number, one.s(number).set(**options))
        assert isinstance(packing.unpack(entry.packed, None, CLAIM).body, kind)
    app.close()


def test_its_place_is_that_of_a_worker_that_parks_it(app: Any) -> None:
    keys, throttle = app.throttle.keys, app.throttle
    entry = EntryBuilder(throttle, "nightly").build(0, app.tasks["tenant"].s("ada").set(priority=3))
    requirement = throttle.task_limits(app.tasks["tenant"]).requirement(("ada",), {})
    assert entry.destination.refs == requirement.refs
    assert entry.costs == requirement.costs
    assert entry.rank == 3  # with Redis as the broker the lowest is first
    assert entry.destination.line == keys.line(
        "redis/0/celery", (*requirement.refs, fan_out_ref("nightly"))
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    calls=st.lists(st.tuples(st.lists(JSON), st.dictionaries(st.text(), JSON)), max_size=5),
    options=st.sampled_from([{}, {"priority": 3}, {"queue": "q%s"}, {"headers": {"a": '"%(id)s'}}]),
)
def test_a_template_gives_what_celery_does(
    app: Any, calls: list[tuple[list[Any], dict[str, Any]]], options: dict[str, Any]
) -> None:
    task, builder = app.tasks["one"], EntryBuilder(app.throttle, "nightly")
    for position in range(2):
        builder.build(position, task.s(1).set(**options))
    for position, (args, kwargs) in enumerate(calls):
        signature = task.signature(args, kwargs).set(task_id=f'"{position}%s', **options)
        kind = builder._kind_of(signature)
        assert kind.template is not None
        sent = builder._capture(kind, signature.args, kwargs, task_id=f'"{position}%s')
        assert builder.build(position, signature).packed == packing.pack(sent)


def test_options_that_change_in_place_are_those_of_each_task(app: Any) -> None:
    builder, headers = EntryBuilder(app.throttle, "nightly"), {"number": 0}
    for number in range(4):
        headers["number"] = number
        entry = builder.build(number, app.tasks["one"].s(1).set(headers=headers))
        assert packing.headers(entry.packed)["number"] == number


def test_links_that_change_in_place_are_those_of_each_task(app: Any) -> None:
    builder, link = EntryBuilder(app.throttle, "nightly"), app.tasks["one"].s(number=0)
    for number in range(4):
        link.kwargs["number"] = number
        entry = builder.build(number, app.tasks["one"].s(1).set(link=[link]))
        _, _, embedded = packing.unpack(entry.packed, {"application/json"}, CLAIM).payload
        assert embedded["callbacks"][0]["kwargs"] == {"number": number}


def test_a_rules_file_that_changes_meanwhile_has_the_limits_of_the_next_task(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_rules, "POLL_SECONDS", 0.0)
    rules = tmp_path / "rules.toml"
    rules.write_text('routes.free = "api"\n')
    app = make_app(throttle_rules=rules)
    builder, task = EntryBuilder(app.throttle, "nightly"), app.tasks["free"]
    found = [builder.build(number, task.s()) for number in range(3)]
    rules.write_text('routes.free = "mail"\n')
    assert app.throttle.task_limits(task).names == {"api"}  # a new content counts when found twice
    found.append(builder.build(3, task.s()))
    assert [entry.destination.refs[0].name for entry in found] == ["api", "api", "api", "mail"]


@pytest.fixture
def serializer() -> Iterator[str]:
    """A serializer of a user that turns values into text, and reads what brokers deliver."""
    name = "plain"
    register(
        name,
        lambda data: json.dumps(data, default=str),
        lambda data: json.loads(bytes.decode(data)),  # type: ignore[arg-type]  # the stubs say text
        content_type="application/x-plain",
        content_encoding="utf-8",
    )
    yield name
    unregister(name)


def test_keys_are_those_that_a_worker_reads(app: Any, serializer: str) -> None:
    tenant, who = app.tasks["tenant"], UUID(int=42)
    builder = EntryBuilder(app.throttle, "nightly")
    found = [builder.build(number, tenant.s(who).set(serializer=serializer)) for number in range(4)]
    assert {entry.destination.refs[1] for entry in found} == {LimitRef("mail", str(who))}


def test_a_task_that_is_sent_to_its_line_has_the_keys_that_a_worker_reads(
    make_app: MakeApp, serializer: str
) -> None:
    app, who = make_app(throttle_publish="line"), UUID(int=42)
    limit = app.throttle["mail", str(who)]
    app.throttle.fan_out([app.tasks["tenant"].s(str(who))])
    assert limit.count_waiting().waiting == 1
    app.tasks["tenant"].apply_async((who,), serializer=serializer)
    assert limit.count_waiting().waiting == 2


class Order(BaseModel):
    """An argument of a task with ``pydantic=True``."""

    number: int


@pytest.mark.skipif(not hasattr(Task, "_dump_pydantic_arguments"), reason="callers dump them")
def test_models_are_sent_as_celery_sends_them(app: Any) -> None:
    @app.task(throttle="mail:{who}", pydantic=True, shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def take(who: str, order: Order) -> None: ...

    builder = EntryBuilder(app.throttle, "nightly")
    for number in range(4):
        signature = take.s("ada", order=Order(number=number)).set(task_id=f"{number}")
        kind = builder._kind_of(signature)
        sent = builder._capture(kind, signature.args, signature.kwargs, task_id=f"{number}")
        entry = builder.build(number, signature)
        assert entry.packed == packing.pack(sent)
        assert sent.payload[1] == {"order": {"number": number}}


def test_what_depends_on_the_time_comes_from_celery(app: Any) -> None:
    builder = EntryBuilder(app.throttle, "nightly")
    for position in range(3):
        signature = app.tasks["one"].s(1).set(expires=60)
        assert builder.build(position, signature).expires > 0
        assert builder._kind_of(signature).template is None


def test_signals_see_every_task(app: Any) -> None:
    seen: list[str] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        seen.append(f"before {headers['id']} {headers['ignore_result']}")
        headers["more"] = "x"

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(f"after {headers['id']}")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        builder = EntryBuilder(app.throttle, "nightly")
        for position in range(3):
            signature = app.tasks["one"].s(1).set(task_id=str(position))
            entry = builder.build(position, signature)
            assert packing.headers(entry.packed)["more"] == "x"
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert seen == [f"{what}" for n in range(3) for what in (f"before {n} False", f"after {n}")]


def test_events_of_sent_tasks_go_to_the_broker(make_app: MakeApp, redis_url: str) -> None:
    app = make_app(task_send_sent_event=True)
    with redis.Redis.from_url(redis_url) as client, client.pubsub() as events:
        events.psubscribe("*celeryev*")
        assert events.get_message(timeout=5)["type"] == "psubscribe"
        EntryBuilder(app.throttle, "nightly").build(0, app.tasks["one"].s(1).set(task_id="an id"))
        event = events.get_message(timeout=5)
    body = b64decode(json.loads(event["data"])["body"])
    assert (json.loads(body)["type"], json.loads(body)["uuid"]) == ("task-sent", "an id")


def test_ids_are_those_of_the_same_tasks_in_the_same_places(app: Any) -> None:
    def ids(name: str, *numbers: int) -> list[str]:
        builder, task = EntryBuilder(app.throttle, name), app.tasks["one"]
        return [builder.build(at, task.s(number)).task_id for at, number in enumerate(numbers)]

    assert ids("a", 1, 2, 3, 3) == ids("a", 1, 2, 3, 3)
    assert len(set(ids("a", 1, 2, 3, 3)) | set(ids("b", 1, 2, 3, 3))) == 8
    assert not set(ids("a", 1, 2, 3)) & set(ids("a", 2, 3, 1))


class Numbered(Task):
    """A task whose messages depend on its arguments."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # as users write it
        headers = {**(options.pop("headers", None) or {}), "first": args[0]}
        return super().apply_async(args, kwargs, headers=headers, **options)


class NumberedApp(Celery):
    def send_task(self, name: str, args: Any = None, *more: Any, **options: Any) -> Any:
        options["headers"] = {**options["headers"], "first": args[0]}
        return super().send_task(name, args, *more, **options)


@pytest.mark.parametrize("way", ["base", "app", "task", "router"])
def test_ones_own_code_has_its_part_in_every_message(redis_url: str, way: str) -> None:
    kind: Any = NumberedApp if way == "app" else Celery
    base = {"task_cls": Numbered} if way == "base" else {}
    app: Any = kind("own", broker=redis_url, set_as_current=False, **base)
    Throttle(app, {"api": "1/h"})
    if way == "router":
        app.conf.task_routes = (lambda name, args, *_, **__: {"priority": args[0]},)  # noqa: ARG005

    @app.task(name="one", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def one(number: int) -> None: ...

    if way == "task":
        own = one.apply_async
        one.apply_async = lambda args, kwargs, **options: own(
            args, kwargs, **{**options, "headers": {**options["headers"], "first": args[0]}}
        )
    builder = EntryBuilder(app.throttle, "nightly")
    found = [builder.build(number, one.s(number)) for number in range(5)]
    if way == "router":
        assert [entry.rank for entry in found] == list(range(5))
    else:
        assert [packing.headers(entry.packed)["first"] for entry in found] == list(range(5))
    app.close()


class Tenanted(Task):
    """A task whose callers leave out an argument that its base class adds."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # as users write it
        return super().apply_async(args, {**(kwargs or {}), "tenant": "ada"}, **options)


def test_limits_and_keys_are_those_of_the_arguments_that_are_sent(redis_url: str) -> None:
    app: Any = Celery("own", broker=redis_url, set_as_current=False, task_cls=Tenanted)
    Throttle(app, {"mail": "1/h"})

    @app.task(name="one", throttle="mail:{tenant}", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def one(number: int, tenant: str = "nobody") -> None: ...

    builder = EntryBuilder(app.throttle, "nightly")
    found = [builder.build(number, one.s(number)) for number in range(3)]
    assert {entry.destination.refs for entry in found} == {(LimitRef("mail", "ada"),)}
    app.close()


@pytest.mark.parametrize(
    ("queue", "routing_key"),
    [
        (Broadcast("all"), "x"),
        (Queue("eu", Exchange("news", "topic"), "news.eu"), "news.us"),
    ],
    ids=["broadcast", "topic"],
)
def test_where_it_cannot_be_told_which_queue(
    make_app: MakeApp, queue: Any, routing_key: str
) -> None:
    app = make_app(task_queues=[Queue("celery"), queue])
    about = {"exchange": queue.exchange.name, "routing_key": routing_key}
    with pytest.raises(FanOutError, match="to which 0 queues of the app are bound"):
        EntryBuilder(app.throttle, "nightly").build(0, app.tasks["one"].s(1).set(**about))
