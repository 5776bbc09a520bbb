"""`drain`, `move`, `drop` and `purge`."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_throttle.cli.shared.console import progress_bar
from celery_throttle.observe.status import fleet
from tests.apps.operated import make_app
from tests.cli.conftest import Shell, fill
from tests.servers.server import wait_until
from tests.workers import StartWorker


@pytest.fixture
def full(app_shell: Shell) -> Shell:
    fill(app_shell.app, 6, tenants=2)
    return app_shell


def messages(url: str, queue: str) -> int:
    with redis.Redis.from_url(url) as client:
        count: Any = client.llen(queue)
        client.delete(queue)
    return int(count)


def test_drain_sends_tasks_back(full: Shell, redis_url: str) -> None:
    assert full.run("drain", "mail", "t0", "--yes") == "Drained 3 tasks.\n"
    assert messages(redis_url, "celery") == 3
    done = full.json("drain", "--all", "--yes")
    assert done == {"removed": 3, "failed": 0, "claimed": 0, "elsewhere": 0}
    assert messages(redis_url, "celery") == 3
    assert full.run("drain", "--all") == "Drained 0 tasks.\n"  # nothing to ask about


def test_move_sends_them_to_another_queue(full: Shell, redis_url: str) -> None:
    full.run("move", "mail", "--queue", "slow", "--yes", "--reason", "too many", "--by", "ann")
    assert messages(redis_url, "slow") == 6
    change = full.app.throttle.changes(most=1)[0]
    assert (change.action, change.limit, change.new) == ("move", "mail", "6 tasks to queue slow")
    assert (change.author.by, change.author.reason) == ("ann", "too many")


def test_a_queue_that_no_worker_consumes(full: Shell) -> None:
    warning = "No live worker consumes queue slow: the tasks wait there until one does."
    assert warning in full.run("move", "mail", "--queue", "slow", code=1)
    assert full.app.throttle["mail"].count_waiting().waiting == 6


def test_purge_discards_messages_and_waiting_tasks(full: Shell) -> None:
    assert full.run("purge", "--queue", "other", "--yes") == "Discarded 0 tasks.\n"
    assert "there is no terminal to ask" in full.run("purge", code=1)
    assert full.run("purge", "--yes") == "Discarded 6 tasks.\n"
    assert full.app.throttle["mail"].count_waiting().waiting == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words", [("drain", "--all"), ("move", "mail", "--queue", "slow"), ("purge",)]
)
def test_a_broker_that_cannot_be_reached(full: Shell, words: tuple[str, ...]) -> None:
    full.app.conf.broker_write_url = "redis://127.0.0.1:1/0"
    error = full.run(*words, "--yes", code=3).splitlines()[-1]
    assert error.startswith("Error: the broker cannot be reached: Error 111 connecting to")
    assert full.app.throttle.count_waiting().waiting == 6


def test_a_result_backend_that_cannot_be_reached(redis_url: str) -> None:
    app: Any = make_app(redis_url)
    app.conf.result_backend = "redis://127.0.0.1:1/0"
    fill(app, 2)
    for words in (("drop", "--all"), ("fanout", "cancel", "nightly")):
        error = Shell(app, "celery").run(*words, "--yes", code=3).splitlines()[-1]
        assert error.startswith("Error: the result backend cannot be reached: Error 111 connecting")


def test_tasks_of_another_broker_are_left_alone(full: Shell) -> None:
    full.app.throttle.own_broker = "redis/other/"
    text = "Drained 0 tasks.\n6 tasks are left alone: of queues of other brokers.\n"
    assert full.run("drain", "--all", "--yes") == text


@pytest.mark.workers
def test_a_queue_that_a_worker_consumes(
    app_shell: Shell, redis_url: str, start_worker: StartWorker
) -> None:
    app = app_shell.app
    start_worker("tests.apps.operated", redis_url, queues=("slow",))
    wait_until(lambda: is_consumed(app, "slow"), "the worker has reported its queue")
    assert not is_consumed(app, "celery")
    fill(app, 30)
    assert "No live worker" not in app_shell.run("move", "mail", "--queue", "slow", code=1)
    assert "No live worker" in app_shell.run("move", "mail", "--queue", "celery", code=1)


def is_consumed(app: Any, queue: str) -> bool:
    throttle = app.throttle
    plan = fleet.is_consumed(throttle.observer, throttle.qualify(queue))
    found: bool = throttle.run_plan(plan)
    return found


def test_a_key_that_is_encoded(app_shell: Shell) -> None:
    send = app_shell.app.tasks["send"]
    app_shell.app.throttle.fan_out([send.s(f"a b{n % 2}", n) for n in range(6)], "odd")
    assert app_shell.run("drop", "mail", "a b1", "--yes") == "Dropped 3 tasks.\n"
    assert app_shell.app.throttle["mail"].count_waiting().waiting == 3


def test_drop_revokes_them(full: Shell) -> None:
    assert full.run("drop", "mail", "--yes") == "Dropped 6 tasks.\n"
    assert full.app.AsyncResult("id3").state == "REVOKED"


def test_tasks_that_are_left_are_a_failure(full: Shell, redis_url: str) -> None:
    keys = full.app.throttle.keys.queue(full.app.throttle.qualify("celery"))
    with redis.Redis.from_url(redis_url) as client:
        client.hset(keys.messages, "id0", b"damaged")
    text = "1 task is still waiting: the messages could not be used."
    assert text in full.run("drain", "--all", "--yes", code=1)
    assert full.json("drain", "--all", "--yes", code=1)["failed"] == 1


def test_they_ask(full: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    error = full.run("drop", "mail", code=1)
    assert "there is no terminal to ask; give --yes" in error
    monkeypatch.setattr("celery_throttle.cli.shared.console._can_ask", lambda: True)
    assert "nothing was changed" in full.run("drain", "mail", typed="n\n", code=1)
    assert full.run("drain", "mail", typed="y\n").endswith("Drained 6 tasks.\n")


def test_what_they_need(app: Any) -> None:
    assert "name of a limit, or --all" in Shell(app, "celery").run("drain", code=2)
    for words in (["drain", "--all"], ["move", "mail", "--queue", "slow"], ["drop", "mail"]):
        assert "this needs the app" in Shell(app, "celery-throttle").run(*words, code=2)
    assert "'nope' is not defined" in Shell(app, "celery").run("drain", "nope", "--yes", code=4)


def test_no_progress_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Drop") as update:
        update(1, 2)
    assert capsys.readouterr().err == ""
