"""A task with limits, and one that had to wait for them, behaves as a plain task does."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Task, chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_throttle import (
    CostError,
    KeyValueError,
    Limiter,
    QueueFullError,
    WaitTooLongError,
)
from celery_throttle.limits.key import encode_key
from tests.apps import shop
from tests.servers.server import assert_nothing_left_behind, wait_until
from tests.worker.conftest import SIZES
from tests.workers import QUICK, Worker

pytestmark = pytest.mark.workers

SECONDS = 20  # what takes longer never comes; only tests that fail wait so long


class Shop:
    """The client's side: sends tasks, holds keys of limits back, reads what the workers told."""

    app = shop.app

    def __init__(self, url: str, worker: Worker | None = None) -> None:
        names = [worker.hostname] if worker else None
        self.to_worker: dict[str, Any] = {"destination": names, "reply": True, "timeout": 10}
        self.url = url
        self.redis = redis.Redis.from_url(url)
        shop.connect(url)
        self.throttle = Limiter(url, shop.LIMITS)

    def rows(self, name: str, *tasks: AsyncResult | str) -> list[dict[str, Any]]:
        """What was told under a name, in order: of all tasks, or of these."""
        rows = [json.loads(row) for row in self.redis.lrange(f"shop:{name}", 0, -1)]
        ids = [str(task) for task in tasks]
        return [row for row in rows if not ids or row["id"] in ids]

    def order(self, name: str, *tasks: AsyncResult | str) -> list[str]:
        return [row["id"] for row in self.rows(name, *tasks)]

    def waiting(self, *tasks: AsyncResult | str) -> None:
        """Waits until all of the tasks wait in their lines."""
        ids = {str(task) for task in tasks}
        until(lambda: set(self.order("throttled", *ids)) == ids, "all tasks wait in their lines")

    def finished(self, *tasks: AsyncResult) -> None:
        until(lambda: all(task.ready() for task in tasks), "all tasks are done")

    def leave(self, *tasks: AsyncResult) -> None:
        """Lets tasks `stay` end."""
        for task in tasks:
            self.redis.lpush(f"shop:leave:{task}", "now")

    def backlog(self, line: str) -> list[bytes]:
        """The limits at which tasks with this key wait."""
        return [key for key in self.redis.scan_iter(f"*{line}*") if b":backlog:" in key]

    def due(self) -> list[tuple[str, float]]:
        """Waiting lists of the queue, and when (us) they are looked at next."""
        found: Any = self.redis.zrange("{throttle}:due:redis/0/celery", 0, -1, withscores=True)
        return [(name.decode(), score) for name, score in found]

    def ran(self, times: int, *tasks: AsyncResult) -> None:
        until(lambda: len(self.rows("runs", *tasks)) == times, f"{times} runs")

    def in_line(self, count: int, line: str) -> None:
        """Waits until so many tasks with this key are in lines."""
        until(
            lambda: sum(int(self.redis.get(key) or 0) for key in self.backlog(line)) == count,
            f"{count} tasks wait",
        )

    def hold(self, line: Any, limit: str = "gate") -> None:
        """Lets no task of this key of a limit pass, until it is let go."""
        self.throttle[limit, line].pause(3600)

    def let_go(self, line: Any, limit: str = "gate") -> None:
        self.throttle[limit, line].reset()

    @contextmanager
    def held(self, line: Any, limit: str = "gate") -> Iterator[None]:
        self.hold(line, limit)
        try:
            yield
        finally:
            self.let_go(line, limit)

    def let_go_one_by_one(self, line: str, limit: str, *runs: AsyncResult) -> None:
        """Let waiting tasks run, each after the run before it; these are all runs of a key.

        The limit lets one of them pass. More could overtake each other: a task that a busy worker
        starts too late goes back to its line while the next is on its way, and with gevent and
        eventlet each is in a greenlet of its own.
        """
        for number in range(1, len(runs) + 1):
            self.let_go(line, limit)
            self.ran(number, *runs)
            self.in_line(len(runs) - number, line)

    def nothing_is_claimed(self) -> None:
        """Wait until no task is on its way from a line to its start in this worker.

        The worker of another pool was killed: its last claim may still be there.
        """
        [worker] = self.to_worker["destination"]
        claims = f"{{throttle}}:claims:{worker}:*"
        until(lambda: not self.redis.keys(claims), "no task is claimed")

    def after_waiting(self, task: Task, *args: Any, **options: Any) -> AsyncResult:
        """A task that has waited in its line, whose key is its first argument."""
        with self.held(args[0]):
            result: AsyncResult = task.apply_async(args, **options)
            self.waiting(result)
        return result

    def consume(self, queue: str, *, on: bool = True) -> None:
        """Lets the worker begin to consume a queue, or no longer; Celery may take 2 s for that."""
        control: Any = shop.app.control
        (control.add_consumer if on else control.cancel_consumer)(queue, **self.to_worker)
        inspect = control.inspect(self.to_worker["destination"], timeout=10)

        def consumes() -> bool:
            [queues] = inspect.active_queues().values()
            return queue in [each["name"] for each in queues]

        until(lambda: consumes() == on, f"consumes {queue}: {on}")

    def left(self, limit: str, line: str) -> int:
        return int(self.throttle[limit, line].peek().remaining)


def until(true: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
    wait_until(true, what, seconds)


@pytest.fixture(scope="module")
def shop_url(server_url: str) -> Iterator[str]:
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        yield server_url
        assert_nothing_left_behind(client)


@pytest.fixture(scope="module")
def worker(shop_url: str, pool: str) -> Iterator[Worker]:
    options = (*QUICK, "--task-events")
    size = SIZES[pool]
    with Worker(
        "tests.apps.shop", shop_url, pool=pool, concurrency=size, options=options
    ) as worker:
        yield worker


@pytest.fixture
def client(shop_url: str, worker: Worker, line: str) -> Iterator[Shop]:
    client = Shop(shop_url, worker)
    yield client
    tail = [text for text in worker.log().splitlines() if "SecurityWarning" not in text]
    print("\n".join(tail[-40:]))
    assert not client.backlog(line), "the test left tasks in lines"


@pytest.fixture
def line() -> str:
    """A key of limits that no other test has."""
    return f"line-{uuid.uuid4().hex[:8]}"


def state_of(result: AsyncResult) -> str:
    return str(result.state)


# The message.


def comparable(result: AsyncResult) -> dict[str, Any]:
    """What a task saw, without what differs between any two tasks."""
    seen = result.get(timeout=SECONDS)
    text = json.dumps(seen, sort_keys=True)
    text = text.replace(result.id, "ID").replace("plain_look", "look")
    same: dict[str, Any] = json.loads(text)
    request = same["request"]
    assert request.pop("hostname")
    for name in ("delivery_tag", "expiration"):  # the second is counted from the sending
        request["properties"].pop(name, None)
    return same


#: Later than the end of a run of all tests.
LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="nothing special"),
        pytest.param(
            {"headers": {"tenant": "ünï", "n": 7, "deep": {"a": [1, None]}}}, id="headers"
        ),
        pytest.param({"priority": 3}, id="priority"),
        pytest.param({"expires": LATER}, id="expires"),
        pytest.param({"eta": LATER - timedelta(days=2)}, id="eta"),
        pytest.param({"time_limit": 30, "soft_time_limit": 20}, id="time limits"),
        pytest.param({"compression": "zlib"}, id="compressed"),
        pytest.param({"shadow": "another name"}, id="shadow"),
        pytest.param({"retries": 2}, id="retries"),
        pytest.param({"ignore_result": False, "reply_to": "somebody"}, id="reply_to"),
        pytest.param({"root_id": "the-root", "parent_id": "the-parent"}, id="root and parent"),
        pytest.param({"link": shop.note.si(1), "link_error": shop.note.si(2)}, id="links"),
        pytest.param({"correlation_id": "of my own", "routing_key": "celery"}, id="routing"),
    ],
)
def test_the_message_that_runs_is_the_message_that_was_sent(
    client: Shop, line: str, options: dict[str, Any]
) -> None:
    value = {"text": "a\nb\0c ünï 🐘", "number": 2**70, "list": [1.5, None, True]}
    twin = shop.plain_look.apply_async((line,), {"value": value}, **options)
    with client.held(line):
        result = shop.look.apply_async((line,), {"value": value}, **options)
        client.waiting(result)
    expected, seen = comparable(twin), comparable(result)
    assert seen == expected
    assert seen["value"] == value
    assert seen["request"]["retries"] == options.get("retries", 0)


def test_a_message_of_the_first_protocol(
    client: Shop, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.app.amqp, "create_task_message", shop.app.amqp.as_task_v1)
    twin = shop.plain_look.delay(line, value=1)
    with client.held(line):
        result = shop.look.delay(line, value=1)
        client.waiting(result)
    assert comparable(result) == comparable(twin)


def test_a_large_message(client: Shop, line: str) -> None:
    result = client.after_waiting(shop.look, line, "x" * 1_000_000)
    assert result.get(timeout=SECONDS)["value"] == "x" * 1_000_000


# Not to run at all.


@pytest.mark.parametrize("how", ["by id", "terminate", "by header"])
def test_a_revoked_task_never_runs_and_takes_no_quota(client: Shop, line: str, how: str) -> None:
    with client.held(line, "rare"):
        signature = shop.rare.s(line)
        if how == "by header":
            signature.stamp(order=line)
        gone: AsyncResult = signature.apply_async()
        others = [shop.rare.delay(line) for _ in range(2)]  # all that the limit allows
        client.waiting(gone, *others)
        if how == "by header":
            shop.app.control.revoke_by_stamped_headers({"order": line}, **client.to_worker)
        else:
            shop.app.control.revoke(str(gone), **client.to_worker, terminate=how == "terminate")
    client.finished(*others)
    client.finished(gone)
    assert state_of(gone) == "REVOKED"
    with pytest.raises(TaskRevokedError):
        gone.get(timeout=SECONDS)
    assert client.order("runs", gone) == []
    until(lambda: client.rows("revoked", gone), "the signal that it is revoked")
    told = client.rows("revoked", gone)
    assert [(row["expired"], row["terminated"]) for row in told] == [(False, False)]


def test_a_revoked_task_is_revoked_while_its_limit_is_still_closed(client: Shop, line: str) -> None:
    with client.held(line):
        result = shop.add.delay(line, 1, 2)
        client.waiting(result)
        shop.app.control.revoke(str(result))
        client.finished(result)  # Celery says so at once, while the task still waits
        assert state_of(result) == "REVOKED"
        until(lambda: not client.backlog(line), "it is taken out of its line")


def test_a_task_that_expires_in_its_line_takes_no_quota(client: Shop, line: str) -> None:
    with client.held(line, "rare"):
        expires = datetime.now(timezone.utc) + timedelta(seconds=3)  # in line by then
        gone = shop.rare.apply_async((line,), expires=expires)
        others = [shop.rare.delay(line) for _ in range(2)]
        client.waiting(gone, *others)
        until(lambda: datetime.now(timezone.utc) > expires, "it has expired")
    client.finished(gone, *others)
    assert state_of(gone) == "REVOKED"
    assert client.order("runs", gone) == []
    until(lambda: client.rows("revoked", gone), "the signal that it is revoked")
    assert [row["expired"] for row in client.rows("revoked", gone)] == [True]


def test_a_task_with_a_countdown_comes_to_its_limit_when_it_is_due(client: Shop, line: str) -> None:
    countdown = 1.0
    due = time.time() + countdown
    with client.held(line):
        result = shop.look.apply_async((line,), eta=datetime.fromtimestamp(due, timezone.utc))
        client.waiting(result)
    assert result.get(timeout=SECONDS)["request"]["eta"] is not None
    # When that is, Celery says: with gevent it starts plain tasks some milliseconds before it.
    assert client.rows("throttled", result)[0]["at"] >= due - countdown / 2
    assert client.order("runs", result) == [result.id]


# Order.


def test_priority_and_then_age_decide_within_a_line(client: Shop, line: str) -> None:
    client.hold(line, "never")
    sent: list[tuple[int, AsyncResult]] = []
    options: dict[str, Any]
    for priority in (9, 3, None, 6, 0, 3, 9):
        options = {} if priority is None else {"priority": priority}
        result = shop.never.apply_async((line,), **options)
        client.waiting(result)
        sent.append((priority or 0, result))
    ordered = [result for _, result in sorted(sent, key=lambda one: one[0])]
    client.let_go_one_by_one(line, "never", *ordered)
    assert client.order("released", *ordered) == [result.id for result in ordered]


# Canvas.


def test_links_are_followed(client: Shop, line: str) -> None:
    good = client.after_waiting(shop.add, line, 1, 2, link=shop.note.s(line))
    bad = client.after_waiting(shop.fail, line, link_error=shop.note.si("error", line))
    assert good.get(timeout=SECONDS) == 3
    with pytest.raises(ValueError, match="as asked"):
        bad.get(timeout=SECONDS)

    def notes() -> list[Any]:
        return [row["args"] for row in client.rows("runs") if row["task"].endswith("note")]

    until(lambda: [3, line] in notes() and ["error", line] in notes(), "both links were called")


def test_a_chain(client: Shop, line: str) -> None:
    with client.held(line):
        last = chain(shop.add.s(line, 1, 2), shop.note.si(line), shop.add.si(line, 3, 4))()
        client.waiting(last.parent.parent)
    assert last.get(timeout=SECONDS) == 7
    assert last.parent.parent.get(timeout=SECONDS) == 3


def test_a_group(client: Shop, line: str) -> None:
    with client.held(line):
        results = group(shop.add.s(line, number, 1) for number in range(5))()
        client.waiting(*results)
    assert results.get(timeout=SECONDS) == [1, 2, 3, 4, 5]


def test_a_chord_whose_members_and_body_wait(client: Shop, line: str) -> None:
    body_line = f"{line}-body"
    client.hold(body_line)
    with client.held(line):
        members = group(shop.add.s(line, number, 1) for number in range(4))
        result: Any = chord(members)(shop.limited_collect.s(body_line))
        client.waiting(*result.parent)
    client.waiting(result)
    assert client.order("runs", result) == []
    client.let_go(body_line)
    assert result.get(timeout=SECONDS) == 10


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "limited"])
@pytest.mark.parametrize("how", ["fails", "revoked"])
def test_a_chord_with_a_member_that_does_not_succeed(
    client: Shop, line: str, how: str, *, plain: bool
) -> None:
    add, fail = (shop.plain_add, shop.plain_fail) if plain else (shop.add, shop.fail)
    bad = fail.s(line)
    if how == "revoked":
        bad = add.s(line, 1, 1).set(expires=datetime.now(timezone.utc) - timedelta(seconds=1))
    with client.held(line):
        result: Any = chord([add.s(line, 1, 2), bad])(shop.collect.s())
        if not plain:
            client.waiting(result.parent[0])
    client.finished(result)
    assert result.state == "FAILURE"
    assert type(result.result).__name__ == "ChordError"


def test_a_chord_with_a_member_that_its_limit_refuses(client: Shop, line: str) -> None:
    client.throttle["never", line].try_acquire()
    with client.held(line):
        result = chord([shop.add.s(line, 1, 2), shop.impatient.s(line)])(shop.collect.s())
    client.finished(result)
    assert type(result.result).__name__ == "ChordError"
    assert "WaitTooLongError('never'" in str(result.result)


# Retries.


def retries(client: Shop, result: AsyncResult) -> list[int]:
    return [row["retries"] for row in client.rows("runs", result)]


def test_only_real_retries_are_counted(client: Shop, line: str) -> None:
    result = client.after_waiting(shop.again, line, 2)
    assert result.get(timeout=SECONDS) == 2
    assert retries(client, result) == [0, 1, 2]


@pytest.mark.parametrize(
    ("plain", "task"), [(shop.plain_again, shop.again), (shop.plain_flaky, shop.flaky)]
)
def test_a_task_that_retries_too_often(client: Shop, line: str, plain: Task, task: Task) -> None:
    args = (line, 99) if task is shop.again else (line,)
    twin, result = plain.delay(*args), client.after_waiting(task, *args)
    client.finished(twin, result)
    assert (result.state, type(result.result)) == (twin.state, type(twin.result))
    assert retries(client, result) == retries(client, twin)


def test_a_retry_waits_for_the_limit_again(client: Shop, line: str) -> None:
    result = shop.rare_again.delay(line, 2)  # two runs pass, the third has to wait
    client.waiting(result)
    assert retries(client, result) == [0, 1]
    assert client.left("rare", line) == 0
    client.let_go(line, "rare")
    assert result.get(timeout=SECONDS) == 2
    assert retries(client, result) == [0, 1, 2]


# Acknowledgements.


def test_a_limit_that_the_server_has_forgotten_costs_no_task_its_place(
    client: Shop, line: str
) -> None:
    client.hold(line, "never")
    tasks = []
    for _ in range(5):
        tasks.append(shop.never.delay(line))
        client.waiting(tasks[-1])
    client.redis.hdel("{throttle}:limits", "never")
    client.let_go_one_by_one(line, "never", *tasks)
    assert client.order("released", *tasks) == [task.id for task in tasks]


def test_a_rejected_task_goes_back_to_the_head_of_its_line(client: Shop, line: str) -> None:
    client.throttle["turn", line].define("1/d")
    client.hold(line, "turn")
    first, second = (shop.refuse.delay(line, requeue=requeue) for requeue in (True, False))
    client.waiting(first, second)
    third = shop.turn.delay(line)
    client.waiting(third)
    runs = [first, first, second, third]
    client.let_go_one_by_one(line, "turn", *runs)
    assert client.order("runs", *runs) == [task.id for task in runs]
    assert client.order("released", *runs) == [task.id for task in runs]
    assert first.get(timeout=SECONDS) == "done"
    client.throttle["turn", line].undefine()


# Results.


def test_an_ignored_result_is_not_stored(client: Shop, line: str) -> None:
    result = client.after_waiting(shop.forget, line)
    until(lambda: client.rows("runs", result), "the task runs")
    follower = shop.add.delay(line, 1, 2)
    assert follower.get(timeout=SECONDS) == 3
    assert result.state == "PENDING"
    assert not client.redis.exists(f"celery-task-meta-{result.id}")


def test_a_waiting_task_shows_where_it_stands(client: Shop, line: str) -> None:
    client.throttle["never", line].try_acquire()
    results = [shop.tracked.delay(line)]
    client.waiting(*results)
    results.append(shop.tracked.delay(line))
    client.waiting(*results)
    until(lambda: all(state_of(result) == "THROTTLED" for result in results), "both are THROTTLED")
    for position, result in enumerate(results, start=1):
        assert not result.ready()
        info = result.info
        assert (info["limit"], info["key"], info["position"]) == ("never", line, position)
        assert 3600 * position - 60 < info["expected"] <= 3600 * position
    client.throttle["never", line].define("100/s")
    for result in results:
        assert result.get(timeout=SECONDS) is None
        assert result.state == "SUCCESS"
    client.throttle["never", line].undefine()


# Tasks nobody edits.


def test_tasks_are_limited_by_routes(client: Shop, line: str) -> None:
    client.hold(line, "rare")
    with client.held(line):
        results = [
            shop.routed_usual.delay(line),
            shop.routed_own.delay(line),
            shop.app.tasks["shop.routed.class"].delay(line),
            shop.routed_one.delay(line),
        ]
        client.waiting(*results)
    client.finished(*results[:3])
    assert client.order("runs", results[3]) == []
    client.let_go(line, "rare")
    client.finished(results[3])
    limits = {row["id"]: row["limit"] for row in client.rows("throttled", *results)}
    assert [limits[result.id] for result in results] == ["gate", "gate", "gate", "rare"]


def test_a_base_and_a_request_of_the_users_own_still_work(client: Shop, line: str) -> None:
    result = client.after_waiting(shop.routed_own, line)
    client.finished(result)

    def told() -> list[str]:
        return [row["what"] for row in client.rows("own", result)]

    # Acknowledged to the broker when it joined its line, and to its claim when it started.
    until(lambda: len(told()) >= 3, "the request was called")
    assert sorted(told()) == ["acknowledge", "acknowledge", "before_start"]


# Keys.


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -7, 1.5, "", "a b", "{x}", "{{}}", "a:b", "line\nbreak\0", "*", "%41"),
        *("!none", "ünï 🐘", "x" * 10_000, b"bytes \xff\x00", uuid.UUID(int=5)),
        datetime(2026, 1, 2, tzinfo=timezone.utc),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_key_of_any_value(client: Shop, line: str, value: Any) -> None:
    with client.held((line, value)):
        result = shop.keyed.apply_async((line,), {"kind": value})
        free = shop.keyed.apply_async((line,), {"kind": "another"})
        client.waiting(result)
        client.finished(free)
        assert client.order("runs", result) == []
    client.finished(result)
    assert result.state == "SUCCESS"
    assert client.rows("throttled", result)[0]["key"] == encode_key((line, value))


@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by position and default"])
def test_a_key_from_any_way_to_pass_an_argument(client: Shop, line: str, *, by_name: bool) -> None:
    with client.held((line, "usual")):
        kwargs = {"line": line, "kind": "usual"} if by_name else {}
        result = shop.keyed.apply_async(() if by_name else (line,), kwargs)
        client.waiting(result)
    client.finished(result)


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2]], ids=["dict", "list"])
def test_a_value_that_cannot_be_a_key_fails_its_task(client: Shop, line: str, value: Any) -> None:
    result = shop.keyed.apply_async((line,), {"kind": value}, link_error=shop.note.si("key", line))
    with pytest.raises(KeyValueError, match=type(value).__name__):
        result.get(timeout=SECONDS)
    assert result.state == "FAILURE"
    assert client.order("runs", result) == []
    until(lambda: ["key", line] in [row.get("args") for row in client.rows("runs")], "errback")
    until(lambda: client.rows("failed", result), "the signal that it failed")
    assert [row["error"] for row in client.rows("failed", result)] == ["KeyValueError"]


# What a task may say of its wait.


def test_a_task_that_would_wait_too_long_fails_at_once(client: Shop, line: str) -> None:
    first = shop.impatient.delay(line)
    client.finished(first)
    result = shop.impatient.delay(line)
    with pytest.raises(WaitTooLongError, match="throttle_max_wait allows 5 s") as caught:
        result.get(timeout=SECONDS)
    error = caught.value
    assert (error.limit, error.key, error.max_wait) == ("never", line, 5)
    assert error.retry_after is not None
    assert 3000 < error.retry_after <= 3600
    assert result.state == "FAILURE"
    assert client.order("runs", result) == []


def test_a_task_that_would_wait_too_long_is_dropped(client: Shop, line: str) -> None:
    first = shop.dropped.delay(line)
    client.finished(first)
    result = shop.dropped.delay(line)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SECONDS)
    assert state_of(result) == "REVOKED"
    assert client.order("runs", first, result) == [first.id]
    # Celery stores the result first.
    until(lambda: client.rows("revoked", result), "the signal that it is revoked")
    assert [row["expired"] for row in client.rows("revoked", result)] == [False]


def test_a_task_that_finds_a_queue_full_fails_at_once(client: Shop, line: str) -> None:
    running, waiting = shop.queued.delay(line), shop.queued.delay(line)
    client.finished(running)
    client.waiting(waiting)
    result = shop.queued.delay(line)
    with pytest.raises(QueueFullError, match="its queue is full") as caught:
        result.get(timeout=SECONDS)
    assert (caught.value.limit, caught.value.key, caught.value.retry_after) == ("queue", line, None)
    assert result.state == "FAILURE"
    client.let_go(line, "queue")
    client.finished(waiting)
    assert client.order("runs", running, waiting, result) == [running.id, waiting.id]


def test_a_task_that_finds_a_queue_full_is_dropped(client: Shop, line: str) -> None:
    running, waiting = shop.queued.delay(line), shop.queued.delay(line)
    client.finished(running)
    client.waiting(waiting)
    result = shop.queued_or_dropped.delay(line)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SECONDS)
    assert state_of(result) == "REVOKED"
    assert client.order("runs", result) == []
    client.let_go(line, "queue")
    client.finished(waiting)


# What a task costs.


def test_a_cost_is_told_by_an_argument(client: Shop, line: str) -> None:
    first, second = shop.measured.delay(line, 0.5), shop.measured.delay(line, units=1.25)
    client.finished(first, second)
    waiting = shop.measured.delay(line, 0.5)  # a quarter of a unit is left
    client.waiting(waiting)
    last = shop.measured.delay(line, 0.25)  # it would pass, but others wait
    client.waiting(last)
    client.let_go(line, "wide")
    client.finished(waiting, last)
    assert client.left("wide", line) == 1


@pytest.mark.parametrize("units", [0, -1, "2", None, 2.000001], ids=str)
def test_an_argument_that_can_be_no_cost_fails_its_task(
    client: Shop, line: str, units: Any
) -> None:
    result = shop.measured.delay(line, units)
    with pytest.raises(CostError, match=f"cost {units!r} "):
        result.get(timeout=SECONDS)
    assert result.state == "FAILURE"
    assert client.order("runs", result) == []
    assert client.left("wide", line) == 2


def test_all_limits_of_a_name_are_passed_at_the_cost_of_the_name(client: Shop, line: str) -> None:
    first, second = shop.paired.delay(line), shop.paired.delay(line)
    client.finished(first, second)
    third = shop.paired.delay(line)
    client.waiting(third)
    assert client.rows("throttled", third)[0]["limit"] == "pair"
    assert client.rows("throttled", third)[0]["retry_after"] > 80_000  # by the log of a day
    client.let_go(line, "pair")
    client.finished(third)


# What is told.


def test_signals(client: Shop, line: str) -> None:
    client.throttle["never", line].try_acquire()
    results, sent_at = [], []
    for _ in range(2):
        sent_at.append(time.time())
        results.append(shop.never.delay(line))
        client.waiting(*results)
    for position, row in enumerate(client.rows("throttled", *results), start=1):
        assert row["task"] == shop.never.name
        assert (row["limit"], row["key"], row["position"]) == ("never", line, position)
        assert 3600 - 60 < row["retry_after"] <= 3600
        assert 3600 * position - 60 < row["expected"] <= 3600 * position
    let_go_at = time.time()
    client.let_go_one_by_one(line, "never", *results)
    client.finished(*results)
    throttled, released = (client.rows(name, *results) for name in ("throttled", "released"))
    assert [row["id"] for row in released] == [result.id for result in results]
    for sent, before, after in zip(sent_at, throttled, released, strict=True):
        assert after["task"] == shop.never.name
        assert let_go_at - before["at"] <= after["wait"] <= after["at"] - sent
        for name in ("limit", "key", "position"):
            assert after[name] == before[name]
    admitted = {row["id"]: row["wait"] for row in client.rows("admitted", *results)}
    assert admitted == {row["id"]: row["wait"] for row in released}


def test_the_admission_of_a_task_that_does_not_wait(client: Shop, line: str) -> None:
    result, unlimited = shop.add.delay(line, 1, 2), shop.plain_add.delay(line, 1, 2)
    client.finished(result, unlimited)
    assert [row["wait"] for row in client.rows("admitted", result)] == [0.0]
    assert client.rows("released", result) == client.rows("admitted", unlimited) == []


def test_events(client: Shop, line: str, worker: Worker) -> None:
    seen: list[dict[str, Any]] = []
    ready, enough = threading.Event(), threading.Event()

    def receive() -> None:
        with shop.app.connection_for_read(client.url) as connection:
            receiver = shop.app.events.Receiver(connection, handlers={"*": seen.append})
            for _ in receiver.itercapture(limit=None, timeout=None, wakeup=False):
                ready.set()
                if enough.is_set():
                    return

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()

    def of(result: AsyncResult) -> list[str]:
        return [event["type"] for event in seen if event.get("uuid") == result.id]

    until(lambda: seen, "a heartbeat")
    result = client.after_waiting(shop.add, line, 1, 2)
    until(lambda: "task-succeeded" in of(result), "the task's last event")
    enough.set()
    wanted = ["task-received", "throttle-parked", "task-started", "task-succeeded"]
    assert of(result) == wanted
    check_received_once(client, worker, result)
    event = next(event for event in seen if event["type"] == "throttle-parked")
    assert event["hostname"] == worker.hostname
    assert (event["limit"], event["key"], event["position"]) == ("gate", line, 1)
    assert 3500 < event["retry_after"] <= 3600
    assert 3500 < event["expected"] <= 3601
    assert event["name"] == shop.add.name
    received = next(event for event in seen if event["type"] == "task-received")
    eta = datetime.fromisoformat(received["eta"]).timestamp()
    assert eta - event["timestamp"] == pytest.approx(event["expected"], abs=5)


def check_received_once(client: Shop, worker: Worker, *results: AsyncResult) -> None:
    """By the signal and by the log; the event is one of those that are compared."""
    for result in results:
        assert len(client.rows("received", result)) == 1
        assert worker.log().count(f"[{result.id}] received") == 1


def test_a_task_is_announced_once_however_it_came_to_its_line(
    client: Shop, line: str, worker: Worker
) -> None:
    with client.held(line, "turn"):
        rejected = shop.refuse.delay(line, requeue=True)  # it runs, goes back, and runs again
        client.waiting(rejected)
        fan_out = [shop.refuse.si(line, requeue=True).set(task_id=f"{line}-{n}") for n in range(2)]
        shop.throttle.fan_out(fan_out, line)
        client.in_line(3, line)
    results = [rejected, *(shop.app.AsyncResult(one.options["task_id"]) for one in fan_out)]
    client.finished(*results)
    client.ran(6, *results)
    check_received_once(client, worker, *results)


def test_a_task_that_meets_a_limit_in_its_body_is_announced_once(
    client: Shop, line: str, worker: Worker
) -> None:
    with client.held(line, "rare"):
        sent = shop.meet.delay(line)
        shop.throttle.fan_out([shop.meet.si(line).set(task_id=f"{line}-fan-out")], line)
        fan_out = shop.app.AsyncResult(f"{line}-fan-out")
        client.ran(2, sent, fan_out)
        client.in_line(2, line)
    client.finished(sent, fan_out)
    check_received_once(client, worker, sent, fan_out)


@pytest.mark.pools("prefork", "threads", "gevent", "eventlet")
def test_what_a_worker_says_of_itself(client: Shop, line: str, worker: Worker) -> None:
    """Not with solo: a worker that runs a task in its one thread answers nobody."""
    inspect: Any = shop.app.control.inspect([worker.hostname], timeout=5)
    client.hold(line, "rare")
    running, waiting = shop.stay.delay(line), shop.rare.delay(line)
    client.waiting(waiting)

    def active_ids() -> list[str]:
        [active] = inspect.active().values()
        return [task["id"] for task in active]

    until(lambda: running.id in active_ids(), "the task runs")
    [reserved] = inspect.reserved().values()
    [registered] = inspect.registered().values()
    assert waiting.id not in [*active_ids(), *(task["id"] for task in reserved)]
    assert shop.rare.name in registered
    assert inspect.query_task(running.id) is not None
    client.leave(running)
    client.let_go(line, "rare")
    client.finished(running, waiting)


# Changes while tasks wait.


def test_a_task_needs_all_of_its_limits(client: Shop, line: str) -> None:
    other = f"{line}-other"
    client.hold(line)
    client.hold(other, "rare")
    results = [shop.both.delay(line, other) for _ in range(2)]
    client.waiting(*results)
    client.let_go(line)
    time.sleep(0.3)
    assert client.order("runs", *results) == []
    assert client.left("gate", line) == 5  # what waits for one limit takes nothing of another
    client.let_go(other, "rare")
    client.finished(*results)
    third = shop.both.delay(line, other)
    client.waiting(third)
    assert client.rows("throttled", third)[0]["limit"] == "rare"
    client.let_go(other, "rare")
    client.finished(third)


def test_a_limit_that_is_raised_at_run_time_frees_those_that_wait(client: Shop, line: str) -> None:
    client.throttle["never", line].try_acquire()
    results = [shop.never.delay(line) for _ in range(10)]
    client.waiting(*results)
    began = time.monotonic()
    client.throttle["never", line].define("100/s")
    client.finished(*results)
    assert time.monotonic() - began < 3
    client.throttle["never", line].undefine()


def test_a_pause_stops_a_line_and_a_reset_lets_it_go_on(client: Shop, line: str) -> None:
    client.throttle["turn", line].define("20/s")
    results = [shop.turn.delay(line) for _ in range(100)]
    until(lambda: len(client.rows("runs", *results)) >= 3, "some tasks ran")
    client.hold(line, "turn")
    client.nothing_is_claimed()  # those that were booked ahead still start
    ran = len(client.rows("released", *results))
    time.sleep(0.5)
    assert len(client.rows("released", *results)) == ran < len(results)
    client.throttle["turn", line].define("1000/s")
    client.let_go(line, "turn")
    client.finished(*results)
    client.throttle["turn", line].undefine()


def test_a_pause_until_resumed_is_lifted_and_nothing_else(client: Shop, line: str) -> None:
    limit = client.throttle["never", line]
    client.throttle["never", line].define("100/d burst 100")
    assert limit.try_acquire(90)
    assert limit.pause(None) == float("inf")
    results = [shop.never.delay(line) for _ in range(4)]
    client.waiting(*results)
    [told] = client.rows("throttled", results[0])
    assert (told["retry_after"], told["expected"]) == (None, None)
    forecast = limit.forecast()
    assert (forecast.waiting, forecast.seconds, forecast.limited_by) == (4, None, "never")
    began = time.monotonic()
    assert limit.resume()
    client.finished(*results)
    assert time.monotonic() - began < 3
    assert limit.peek().remaining == 6
    client.throttle["never", line].undefine()


def test_a_line_behind_a_pause_until_resumed_is_not_looked_at(client: Shop, line: str) -> None:
    limit = client.throttle["gate", line]
    limit.pause(None)
    result = shop.add.delay(line, 1, 2)
    client.waiting(result)
    [due] = [score for name, score in client.due() if line in name]
    assert due > time.time() * 1e6 + 1e14  # in years
    limit.resume()
    assert result.get(timeout=SECONDS) == 3


def test_a_task_that_may_wait_some_time_fails_at_once_in_a_pause_until_resumed(
    client: Shop, line: str
) -> None:
    client.throttle["never", line].pause(None)
    with pytest.raises(WaitTooLongError, match="paused until it is resumed") as caught:
        shop.impatient.delay(line).get(timeout=SECONDS)
    assert (caught.value.retry_after, caught.value.paused) == (None, float("inf"))
    client.throttle["never", line].resume()


def test_a_pause_ends_by_itself(client: Shop, line: str) -> None:
    began = time.monotonic()
    client.throttle["gate", line].pause(3.0)  # in line by then
    result = shop.add.delay(line, 1, 2)
    assert result.get(timeout=SECONDS) == 3
    assert time.monotonic() - began >= 2.9
    assert client.rows("throttled", result)


def test_a_cost_that_can_no_longer_pass_fails_its_task(client: Shop, line: str) -> None:
    with client.held(line, "wide"):
        result = shop.wide.delay(line)
        client.waiting(result)
        client.throttle["wide", line].define("1/h burst 1")
    with pytest.raises(CostError, match="wide"):
        result.get(timeout=SECONDS)
    assert client.order("runs", result) == []
    client.throttle["wide", line].undefine()


def test_a_message_delivered_twice_is_not_lost_when_its_cost_can_no_longer_pass(
    client: Shop, line: str
) -> None:
    queue = f"nobody-{line}"  # a message that the broker has delivered before
    result = shop.wide.apply_async((line,), queue=queue)
    packed: Any = client.redis.lpop(queue)
    message = json.loads(packed)
    message["properties"]["delivery_info"] |= {"redelivered": True, "routing_key": "celery"}
    with client.held(line, "wide"):
        client.redis.lpush("celery", json.dumps(message))
        client.waiting(result)
        client.throttle["wide", line].define("1/h burst 1")
    with pytest.raises(CostError, match="wide"):
        result.get(timeout=SECONDS)
    client.throttle["wide", line].undefine()


def test_limits_met_in_the_body_of_a_task(client: Shop, line: str) -> None:
    outcomes = [shop.take.delay(line) for _ in range(20)]
    taken = [outcome.get(timeout=SECONDS) for outcome in outcomes]
    assert sum(allowed for _, allowed in taken) == 2
    assert client.left("rare", line) == 0


# Queues and workers.


def test_a_worker_takes_tasks_only_from_lines_of_its_queues(client: Shop, line: str) -> None:
    queue = f"queue-{line}"
    client.consume(queue)
    with client.held(line):
        here, there = shop.add.delay(line, 1, 1), shop.add.apply_async((line, 2, 2), queue=queue)
        client.waiting(here, there)
        client.consume(queue, on=False)
    assert here.get(timeout=SECONDS) == 2
    time.sleep(1.2)  # more than the longest time between two looks
    assert client.order("runs", there) == []
    client.consume(queue)
    assert there.get(timeout=SECONDS) == 4
    shop.app.control.cancel_consumer(queue, **client.to_worker)
