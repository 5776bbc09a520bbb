"""Waiting tasks go to the broker, and none is lost or sent twice, whatever fails meanwhile."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Queue
from kombu.exceptions import OperationalError

from celery_throttle import (
    PublishRejectedError,
    QueueNotFoundError,
    StoreUnavailableError,
    UnknownLimitError,
)
from celery_throttle.bulk.removal.counts import Removal
from celery_throttle.bulk.removal.publisher import QueuePublisher
from celery_throttle.bulk.removal.withdrawal import BATCH_SIZE
from celery_throttle.operations.waiting import (
    LineTasks,
    ParkRequest,
    claim_call,
    park,
    quarantine_call,
)
from celery_throttle.store.script import Call
from celery_throttle.tasks.messages.publishing import publish
from tests.bulk.fan_out.test_messages import OPTIONS, describe
from tests.bulk.removal.conftest import MakeSite, Site
from tests.programs import ROOT
from tests.servers.server import wait_until
from tests.workers import StartWorker

#: What sends the messages of a drain.
PUBLISH = "celery_throttle.bulk.removal.publisher.publish"

ROUTE = ("exchange", "routing_key")


def content(message: Any) -> dict[str, Any]:
    """Return all of a message but its way through the broker, with the raw body."""
    described = {name: one for name, one in describe(message).items() if name not in ROUTE}
    return {**described, "body": message.body}


def ids(messages: list[Any]) -> list[str]:
    return [message.headers["id"] for message in messages]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [options for options in OPTIONS.values() if options.get("queue", "other") == "other"],
    ids=[name for name, options in OPTIONS.items() if options.get("queue", "other") == "other"],
)
def test_a_message_is_as_it_was(site: Site, options: dict[str, Any]) -> None:
    options = {name: one for name, one in options.items() if name not in ROUTE}
    queue = options.get("queue", "celery")
    site.send(1, "call", "ä", {"n": 1}, **options)
    [sent] = site.park(queue)
    assert site.throttle.drain_all() == Removal(1, 0, 0, 0)
    [drained] = site.at_broker(queue)
    assert content(drained) == content(sent)
    assert (site.waiting(), site.claimed()) == (0, 0)


def test_a_message_of_the_first_protocol(make_site: MakeSite) -> None:
    site = make_site(task_protocol=1)
    site.send(1)
    [sent] = site.park()
    assert "task" not in sent.headers
    assert site.throttle.drain_all().removed == 1
    [drained] = site.at_broker()
    assert content(drained) == content(sent)


def test_in_order_and_to_their_queues(site: Site) -> None:
    sent = {queue: site.send(600, queue=queue) for queue in ("celery", "other")}
    urgent = site.send(3, priority=0)
    late = site.send(3, priority=9)
    for queue in sent:
        site.park(queue)
    assert site.throttle.drain_all().removed == 1206
    assert ids(site.at_broker()) == [*sent["celery"], *urgent, *late]
    assert ids(site.at_broker("other")) == sent["other"]


def test_a_limit_and_a_key_of_it(site: Site) -> None:
    plain = site.send(2)
    of_a, of_b = site.send(3, "tenant", "a"), site.send(4, "tenant", "b")
    site.park()
    assert site.throttle["mail", "a"].drain().removed == 3
    assert ids(site.at_broker()) == of_a
    assert site.throttle["mail"].drain().removed == 4
    assert ids(site.at_broker()) == of_b
    assert site.throttle["mail"].drain().removed == 0
    assert site.throttle["api"].drain().removed == 2
    assert ids(site.at_broker()) == plain


def test_limits_that_cannot_be_meant(site: Site) -> None:
    with pytest.raises(UnknownLimitError, match="'nothing' is not defined"):
        site.throttle["nothing"].drain()


def test_tasks_of_a_limit_that_is_no_more(site: Site, make_site: MakeSite) -> None:
    """Nobody defines it, but tasks wait for it."""
    site.send(2, "tenant", "a")
    site.park()
    site.client.delete("{throttle}:limits")
    later = make_site(limits={})
    assert later.throttle["mail"].drain().removed == 2
    assert len(site.at_broker()) == 2


def test_a_preview(site: Site) -> None:
    site.send(2)
    site.send(3, "tenant", "a", queue="other")
    site.park()
    site.park("other")
    count = site.throttle.count_waiting()
    assert (count.waiting, count.claimed, count.elsewhere) == (5, 0, 0)
    assert count.queues == {"celery": 2, "other": 3}
    assert site.throttle["mail", "a"].count_waiting().queues == {"other": 3}
    assert site.throttle["mail", "b"].count_waiting().waiting == 0
    assert site.waiting() == 5


def test_progress(site: Site) -> None:
    site.send(2 * BATCH_SIZE + 10)
    site.park()
    seen: list[tuple[int, int]] = []
    site.throttle.drain_all(progress=lambda done, total: seen.append((done, total)))
    total = 2 * BATCH_SIZE + 10
    assert seen == [(BATCH_SIZE, total), (2 * BATCH_SIZE, total), (total, total)]


def test_to_another_queue(site: Site) -> None:
    sent = site.send(3)
    other = site.send(2, queue="other")
    for queue in ("celery", "other"):
        site.park(queue)
    assert site.throttle["api"].move("other").removed == 5
    assert ids(site.at_broker("other")) == [*sent, *other]
    site.send(1)
    site.park()
    assert site.throttle.move_all("new").removed == 1
    assert len(site.at_broker("new")) == 1


def test_a_queue_that_the_app_does_not_have(make_site: MakeSite) -> None:
    site = make_site(task_create_missing_queues=False)
    site.send(3)
    site.park()
    with pytest.raises(QueueNotFoundError, match="'new' is not in task_queues"):
        site.throttle["api"].move("new")
    assert site.waiting() == 3


@pytest.mark.thorough
@pytest.mark.parametrize("queue", ["", None, 5])
def test_a_queue_has_a_name(site: Site, queue: Any) -> None:
    site.send(3)
    site.park()
    moves = (site.throttle["api"].move, site.throttle.move_all)
    for remove in (*moves, lambda queue: site.throttle.purge(["celery", queue])):
        with pytest.raises(QueueNotFoundError, match="allowed: the name of a queue"):
            remove(queue)
    assert (site.waiting(), len(site.at_broker())) == (3, 0)


@pytest.mark.rabbitmq
def test_a_queue_that_rabbitmq_does_not_have(
    make_site: MakeSite, rabbitmq_url: str, redis_url: str
) -> None:
    site = make_site(task_create_missing_queues=False, throttle_url=redis_url)
    site.send(3)
    messages = site.at_broker()
    use_rabbitmq(site, rabbitmq_url)
    for message in messages:
        site.park_message(message, "gone")
    with pytest.raises(QueueNotFoundError, match="no queue 'gone'"):
        site.throttle.drain_all()
    assert (site.waiting(), site.claimed()) == (3, 0)
    assert site.throttle.move_all("celery").removed == 3
    assert ids(site.at_broker()) == ids(messages)


def use_rabbitmq(site: Site, url: str) -> None:
    """Let an app that has sent its tasks to Redis use RabbitMQ from now on, with empty queues."""
    site.app.conf.broker_url = url
    with site.app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue in site.app.amqp.queues.values():
            channel.queue_delete(queue.name)
            queue(channel).declare()


@pytest.mark.rabbitmq
def test_headers_of_rabbitmq_stay_behind(
    make_site: MakeSite, any_rabbitmq_url: str, redis_url: str
) -> None:
    """RabbitMQ 3 would take the task for one in a cycle, and send it to the queues in CC again."""
    site = make_site(throttle_url=redis_url)
    own: dict[str, Any] = {"trace": "abc", "x-request": "1"}
    deaths = {"x-death": [{"queue": "celery", "reason": "expired"}], "x-last-death-queue": "celery"}
    site.send(1, headers={**own, **deaths, "x-delivery-count": 3, "CC": ["other"]})
    [message] = site.at_broker()
    use_rabbitmq(site, any_rabbitmq_url)
    site.park_message(message)
    assert site.throttle.drain_all().removed == 1
    assert site.at_broker("other") == []
    [drained] = site.at_broker()
    expected = {name: one for name, one in message.headers.items() if not name.startswith("x-")}
    del expected["CC"]
    assert drained.headers == {**expected, **own}


@pytest.mark.rabbitmq
@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        ((), {"headers": {"large": "x" * 200_000}}, "its headers have 2"),
        ((), {"headers": {"large": "x" * 130_700}}, "FRAME_ERROR"),
        (("x" * 17_000_000,), {}, "PRECONDITION_FAILED - message size 17"),
        ((), {"headers": {"large": 2**64}}, "int too large"),
    ],
    ids=["headers above frame_max", "with all the rest", "body above max_message_size", "number"],
)
def test_a_message_that_rabbitmq_refuses(
    make_site: MakeSite,
    rabbitmq4_url: str,
    redis_url: str,
    *,
    caplog: pytest.LogCaptureFixture,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    reason: str,
) -> None:
    """It stays in its line, and the others go. A fan-out may have put it there."""
    site = make_site(throttle_url=redis_url)
    first, last = site.send(1), site.send(1, "call", *arguments, **options) + site.send(1)
    messages = site.at_broker()
    use_rabbitmq(site, rabbitmq4_url)
    for message in messages:
        site.park_message(message)
    assert site.throttle.drain_all() == Removal(2, 1, 0, 0)
    assert ids(site.at_broker()) == [*first, last[1]]
    assert (site.waiting(), site.claimed()) == (1, 0)
    assert f"Could not drain task {last[0]}" in caplog.text
    assert reason in caplog.text


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_that_is_full(
    make_site: MakeSite, any_rabbitmq_url: str, redis_url: str, kind: str
) -> None:
    arguments = {"x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue("celery", queue_arguments=arguments)
    site = make_site(throttle_url=redis_url)
    sent = site.send(5)
    messages = site.at_broker()
    site.app.amqp.queues.add(queue)
    use_rabbitmq(site, any_rabbitmq_url)
    for message in messages:
        site.park_message(message)
    with pytest.raises(PublishRejectedError, match="'celery' takes no more messages"):
        site.throttle.drain_all()
    taken = ids(site.at_broker())
    assert taken == sent[: len(taken)]
    assert (site.waiting(), site.claimed()) == (5 - len(taken), 0)
    assert site.throttle.move_all("other").removed == 5 - len(taken)
    assert ids(site.at_broker("other")) == sent[len(taken) :]
    with site.app.connection_for_write() as connection:  # other tests declare it without bounds
        connection.default_channel.queue_delete(queue.name)


def park_elsewhere(site: Site, queue: str) -> None:
    requirement = site.throttle.require(["api"], 1)
    task = ParkRequest(f"in {queue}", b"message", requirement)
    site.throttle.run_plan(park(site.throttle.plans, [LineTasks(queue, [task])]))


def test_queues_of_other_brokers(site: Site) -> None:
    site.send(2)
    site.park()
    park_elsewhere(site, "amqp/%2F/celery")
    assert site.throttle.count_waiting().elsewhere == 1
    assert site.throttle.drain_all() == Removal(2, 0, 0, 1)
    assert site.waiting() == 1


@pytest.mark.workers
def test_workers_without_this_package_run_what_was_drained(
    site: Site, redis_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    """As after a rollback."""
    ran = tmp_path / "ran"
    ran.touch()

    @site.app.task(name="tests.apps.plain.note", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def note(path: str, line: int) -> None: ...

    site.send(20, note.name, str(ran))
    site.park()
    assert site.throttle.drain_all().removed == 20
    start_worker("tests.apps.plain", redis_url, pool="solo")
    wait_until(lambda: len(ran.read_text().split()) == 20, "all tasks have run")
    assert ran.read_text().split() == [str(number) for number in range(20)]


def test_a_message_that_cannot_be_sent(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.send(2)
    site.park()
    park_elsewhere(site, site.throttle.qualify("celery"))
    assert site.throttle.drain_all() == Removal(2, 1, 0, 0)
    assert (site.waiting(), site.claimed()) == (1, 0)
    assert "Could not drain task" in caplog.text


def interrupt_at(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let the broker fail at one of the messages, after it has got it."""
    sent = iter(range(number))

    def failing(*args: Any, **options: Any) -> None:
        publish(*args, **options)
        if next(sent, None) is None:
            raise error

    monkeypatch.setattr(PUBLISH, failing)


@pytest.mark.thorough
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectionResetError("gone")], ids=repr)
def test_what_was_not_sent_is_at_the_head_of_its_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sent = site.send(BATCH_SIZE + 20)
    site.park()
    with monkeypatch.context() as patch:
        interrupt_at(patch, BATCH_SIZE + 5, error)
        with pytest.raises(type(error)):
            site.throttle.drain_all()
    assert ids(site.at_broker()) == sent[: BATCH_SIZE + 6]
    assert site.claimed() == 0
    assert site.throttle.drain_all().removed == 15
    # Nobody knows whether the broker has the task at which it failed, so that is sent again.
    assert ids(site.at_broker()) == sent[BATCH_SIZE + 5 :]


def test_large_tasks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are claimed a few at a time, and requeued a few at a time if they cannot be sent."""
    sent = site.send(12, "call", "x" * 400_000)
    site.park()
    batches: list[int] = []
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            site.throttle.drain_all()
    assert ids(site.at_broker()) == sent[:1]
    assert (site.waiting(), site.claimed()) == (12, 0)
    assert site.throttle.drain_all(progress=lambda seen, _: batches.append(seen)).removed == 12
    assert ids(site.at_broker()) == sent
    assert batches == [3, 6, 9, 12]


CRASH = """
import os, sys
from celery_throttle.bulk.removal.publisher import QueuePublisher
from tests.bulk.removal.conftest import Site
site = Site(sys.argv[1])
QueuePublisher.complete = lambda self: os._exit(9)
site.throttle.drain_all()
"""


def test_a_crash_between_the_broker_and_the_server(site: Site, redis_url: str) -> None:
    sent = site.send(BATCH_SIZE + 20)
    site.park()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CRASH, redis_url], env=env, timeout=60, check=False
    )
    assert done.returncode == 9
    first = ids(site.at_broker())
    assert first == sent[:BATCH_SIZE]
    assert site.throttle.count_waiting().claimed == BATCH_SIZE

    def lapsed() -> bool:
        report = claim_call(site.throttle.keys, "somebody", (), range(0), lease=3)
        return bool(site.throttle.store.run(report)[1])

    wait_until(lapsed, "the end of the lease")
    assert site.throttle.drain_all() == Removal(BATCH_SIZE + 20, 0, 0, 0)
    assert ids(site.at_broker()) == sent, "that batch twice"


@pytest.mark.thorough
def test_the_lease_is_renewed_while_the_broker_is_slow(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(1)
    site.park()

    def lease_ends() -> float:
        [(_, ends)] = site.client.zrange(
            "{throttle}:workers", "(0", "+inf", byscore=True, withscores=True
        )
        return float(ends)

    def slow(*args: Any, **options: Any) -> None:
        before = lease_ends()
        wait_until(lambda: lease_ends() > before + 2e6, "two renewals")
        publish(*args, **options)

    monkeypatch.setattr(PUBLISH, slow)
    assert site.throttle.drain_all().removed == 1


def test_claims_are_left_to_their_workers(site: Site) -> None:
    site.send(5)
    site.park()
    site.throttle["api"].reset()
    keys = site.throttle.keys
    queue = list(keys.queue(site.throttle.qualify("celery")))
    call = claim_call(keys, "worker", queue, range(1, 2), lease=60)
    assert len(site.throttle.store.run(call)) == 3
    assert site.throttle["api"].count_waiting().claimed == 1
    assert site.throttle["mail"].count_waiting().claimed == 0
    assert site.throttle.drain_all() == Removal(4, 0, 1, 0)
    site.throttle.store.run(claim_call(keys, "worker", (), range(0), lease=60, settled=[1]))


def test_a_lost_reply_costs_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims of each call that failed are requeued before the next attempt."""
    sent = site.send(BATCH_SIZE + 5)
    site.park()
    run = site.throttle.store.run
    failed: list[str] = []

    def lossy(call: Call) -> Any:
        reply = run(call)
        name = call.script.name
        if name in ("withdraw_lines", "claim", "requeue") and failed.count(name) < 2:
            failed.append(name)
            raise StoreUnavailableError("the reply is lost")
        return reply

    monkeypatch.setattr(site.throttle.store, "run", lossy)
    monkeypatch.setattr("celery_throttle.bulk.retry.RETRY_INTERVAL_SECONDS", 0.0)
    assert site.throttle.drain_all() == Removal(BATCH_SIZE + 5, 0, 0, 0)
    assert sorted(set(failed)) == ["claim", "requeue", "withdraw_lines"]
    assert ids(site.at_broker()) == sent


@pytest.mark.thorough
def test_a_server_that_is_lost_for_good(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks wait again when the lease has run out."""
    sent = site.send(3)
    site.park()
    run = site.throttle.store.run
    with monkeypatch.context() as patch:

        def lost(*_: object) -> Any:
            raise StoreUnavailableError("it is down")

        def lose(*_: object) -> None:
            patch.setattr(site.throttle.store, "run", lost)

        patch.setattr(QueuePublisher, "complete", lose)
        patch.setattr("celery_throttle.bulk.retry.RETRY_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(StoreUnavailableError), caplog.at_level(logging.WARNING):
            site.throttle.drain_all()
    assert "its claimed tasks wait again in 3 s" in caplog.text
    assert site.claimed() == 3
    report = claim_call(site.throttle.keys, "somebody", (), range(0), lease=3)
    wait_until(lambda: run(report)[1], "the end of the lease")
    assert site.throttle.drain_all().removed == 3
    assert ids(site.at_broker()) == sent + sent


def test_a_worker_may_park_the_message_again(site: Site) -> None:
    """Also if the broker delivers it twice: it is not the message that was parked before."""
    site.send(1)
    site.park()
    assert site.client.zcard("{throttle}:unacknowledged") == 1
    site.throttle.drain_all()
    [message] = site.at_broker()
    assert site.park_message(message, redelivered=True) == "parked"


def test_tasks_in_quarantine(site: Site) -> None:
    sent = site.send(3)
    site.park()
    site.throttle["api"].reset()
    keys = site.throttle.keys
    queue = list(keys.queue(site.throttle.qualify("celery")))
    site.throttle.store.run(claim_call(keys, "worker", queue, range(1, 2), lease=60))
    site.throttle.store.run(quarantine_call(keys, "worker", 1, "1 call"))
    assert site.throttle["api"].count_waiting().waiting == 3
    assert site.throttle["mail"].drain() == Removal(0, 0, 0, 0)
    assert site.throttle["api"].drain() == Removal(3, 0, 0, 0)
    assert sorted(ids(site.at_broker())) == sorted(sent)


def test_without_a_server_of_limits(make_site: MakeSite) -> None:
    site = make_site(throttle_enabled=False)
    assert site.throttle.drain_all() == Removal(0, 0, 0, 0)
    assert site.throttle.count_waiting().waiting == 0


@pytest.mark.thorough
def test_a_broker_that_cannot_be_reached(site: Site) -> None:
    site.send(2)
    site.park()
    site.app.connection_for_write = lambda: Connection("redis://127.0.0.1:1/0")
    with pytest.raises(OperationalError, match="refused"):
        site.throttle.drain_all()
    assert (site.waiting(), site.claimed()) == (2, 0)
