"""Fan-outs on a real server, without workers."""

from __future__ import annotations

import itertools
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, chain, group
from celery.exceptions import TimeoutError as WaitedTooLong

from celery_throttle import (
    ConfigurationError,
    CostError,
    FanOutError,
    KeysFullError,
    KeyValueError,
    LimitValueError,
    StoreError,
    StoreUnavailableError,
    Throttle,
    UnknownFanOutError,
    UnknownLimitError,
)
from celery_throttle.bulk import retry
from celery_throttle.bulk.fan_out.enlist import MAX_BATCH_BYTES, MAX_BATCH_TASKS
from celery_throttle.operations.waiting import (
    ClaimStatus,
    claim_call,
    requeue_call,
    withdraw_call,
)
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call, script
from celery_throttle.tasks.messages import packing
from tests.bulk.fan_out.conftest import LIMITS, MakeApp
from tests.programs import ROOT
from tests.servers.server import Server, free_port, wait_until


def waiting(app: Any, queue: str = "celery") -> list[str]:
    """Return ids of all tasks in lines of a queue, line by line."""
    found = in_line(app)
    with redis.Redis.from_url(app.conf.broker_url) as client:
        messages = app.throttle.keys.queue(f"redis/0/{queue}").messages
        assert client.hlen(messages) == len(found)
    return found


def in_line(app: Any) -> list[str]:
    """Return ids of all tasks in lines, while a publisher may add more."""
    client: Any = redis.Redis.from_url(app.conf.broker_url)
    with client:
        lines = client.keys("{throttle}:line:*")
        return [task_id.decode() for line in lines for task_id in client.zrange(line, 0, -1)]


def end(app: Any, name: str, *outcomes: tuple[str, str]) -> None:
    """Record outcomes of tasks, as a worker does."""
    args: list[Any] = ["", 5_000_000, 10_000_000]
    for task_id, outcome in outcomes:
        args += (task_id, outcome)
    app.throttle.store.run(Call(script("record_outcomes"), [app.throttle.keys.fan_out(name)], args))


def some(app: Any, count: int, name: str = "one") -> list[Any]:
    return [app.tasks[name].s(n).set(task_id=f"{n}") for n in range(count)]


def test_tasks_are_in_their_lines(app: Any, client: Any) -> None:
    handle = app.throttle.fan_out(iter(some(app, 1000)), "nightly")
    assert sorted(waiting(app), key=int) == [str(n) for n in range(1000)]
    progress = handle.progress()
    assert (progress.sent, progress.waiting, progress.running) == (1000, 1000, 0)
    assert progress.closed
    assert not progress.complete
    assert client.llen("celery") == 0
    assert client.get("{throttle}:backlog:api") == b"1000"
    assert app.throttle.fan_out_named("nightly").progress() == progress


def test_a_fan_out_of_nothing_is_complete(app: Any) -> None:
    progress = app.throttle.fan_out([]).wait(timeout=1)
    assert (progress.sent, progress.complete) == (0, True)


def test_they_keep_their_order_and_go_by_priority(app: Any) -> None:
    signatures = some(app, 5)
    signatures[3].set(priority=5)  # with Redis as the broker the lowest is first
    app.throttle.fan_out([*signatures], "nightly")
    assert waiting(app) == ["0", "1", "2", "4", "3"]


def test_positions_count_the_tasks_before(app: Any, client: Any) -> None:
    app.throttle.fan_out(some(app, 3), "nightly")
    more = [
        signature.set(priority=5 * (index == 4)) for index, signature in enumerate(some(app, 7))
    ]
    app.throttle.fan_out(more, "nightly")
    app.throttle["api"].define("1000/s burst 100")
    keys = app.throttle.keys
    call = claim_call(keys, "w", keys.queue("redis/0/celery"), range(1, 10), lease=5)
    rows = app.throttle.store.run(call)[2:]
    found = [(int(row[5]), row[7]) for row in rows]
    assert found == [(0, 1), (1, 2), (2, 3), (3, 4), (5, 5), (6, 6), (4, 5)]
    assert {row[6] for row in rows} == {b"api"}
    assert not client.keys("{throttle}:state:@*")


def claim(app: Any, first_token: int, count: int = 10) -> list[bytes]:
    """Claim tasks as a worker does, and return their ids."""
    keys = app.throttle.keys
    tokens = range(first_token, first_token + count)
    call = claim_call(keys, "w", keys.queue("redis/0/celery"), tokens, lease=5)
    return [row[5] for row in app.throttle.store.run(call)[2:]]


def test_it_is_no_limit(app: Any, client: Any) -> None:
    app.throttle["api"].define("100/s burst 100")
    handle = app.throttle.fan_out(some(app, 20), "nightly")
    assert len(claim(app, 1)) == 10
    handle.pause(60)
    assert claim(app, 11) == []
    assert {status.name for status in app.throttle.status().limits} == set(LIMITS)
    names = {name.encode() for name in LIMITS}
    assert client.smembers("{throttle}:names") == {*client.hkeys("{throttle}:limits")} <= names
    assert not client.keys("{throttle}:totals:@*")
    kinds = {key.split(b":")[1] for key in client.keys("{throttle}:*:@fan-out*")}
    lists = {b"backlog", b"waiting", b"waiting-lists", b"waiting-list-index"}
    assert kinds == {b"pause", b"paused-by", *lists}
    app.throttle.pause_all(60)
    assert client.exists("{throttle}:pause:@fan-out") == 0
    app.throttle.resume_all()
    assert claim(app, 21) == []
    with pytest.raises(UnknownLimitError, match="this process knows: 'api', 'few'"):
        app.throttle["nightly"].pause(60)


def test_a_paused_fan_out_waits_for_nothing_else(app: Any) -> None:
    app.throttle["api"].define("100/s burst 100")
    paused = app.throttle.fan_out(some(app, 5), "nightly")
    paused.pause(reason="letters are wrong", by="ann")
    other = [app.tasks["one"].s(n).set(task_id=f"other {n}") for n in range(5)]
    app.throttle.fan_out(other, "daily")
    assert sorted(claim(app, 1)) == [f"other {n}".encode() for n in range(5)]
    assert paused.forecast().waiting == 5  # its queue is found though nothing waits for a limit
    found = app.throttle.explain("0")
    assert (found.blocked_by, found.limits) == (
        ("@fan-out", "nightly"),
        (("api", None, 1.0),),
    )
    assert [(one.limit, one.key, one.author.by) for one in found.pauses] == [
        ("@fan-out", "nightly", "ann")
    ]
    paused.resume(by="bob")
    assert sorted(claim(app, 11)) == [str(n).encode() for n in range(5)]
    changes = [(one.action, one.limit) for one in app.throttle.changes(most=2)]
    assert changes == [("resume", "@fan-out:nightly"), ("pause", "@fan-out:nightly")]


def test_each_set_of_keys_has_a_line(app: Any, client: Any) -> None:
    tenants = [app.tasks["tenant"].s(f"t{n % 30}").set(task_id=str(n)) for n in range(300)]
    app.throttle.fan_out(tenants, "nightly")
    assert len(client.keys("{throttle}:line:*")) == 30
    assert len(waiting(app)) == 300
    assert client.get("{throttle}:backlog:api") == b"300"


def test_it_is_not_sent_twice(app: Any) -> None:
    for count in (100, 250, 250):
        handle = app.throttle.fan_out(iter(some(app, count)), "nightly")
    assert sorted(waiting(app), key=int) == [str(n) for n in range(250)]
    assert handle.progress().sent == 250


def test_what_has_ended_is_not_sent_again(app: Any) -> None:
    app.throttle.fan_out(some(app, 3), "nightly")
    end(app, "nightly", ("0", "done"), ("1", "failed"), ("1", "failed"), ("9", "done"))
    for number in range(3):
        withdraw(app, str(number))
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    assert waiting(app) == []
    progress = handle.progress()
    assert (progress.sent, progress.done, progress.failed, progress.revoked) == (3, 1, 1, 0)


def test_one_that_failed_may_have_run_again(app: Any) -> None:
    """For example after a cold shutdown of its worker."""
    handle = app.throttle.fan_out(some(app, 2), "nightly")
    end(app, "nightly", ("0", "failed"), ("0", "done"), ("0", "failed"), ("1", "revoked"))
    progress = handle.progress()
    assert (progress.done, progress.failed, progress.revoked) == (1, 0, 1)
    assert [result.id for result in itertools.islice(handle.results(), 2)] == ["0", "1"]


def test_another_name_is_another_fan_out(app: Any) -> None:
    app.throttle.fan_out([app.tasks["one"].s(1)], "a")
    app.throttle.fan_out([app.tasks["one"].s(1)], "b")
    app.throttle.fan_out([app.tasks["one"].s(1)], "b")
    assert len(waiting(app)) == 2


def test_an_id_that_waits_already_is_not_put_there_twice(app: Any) -> None:
    """It is no part of the second fan-out, which would never learn of its end."""
    for name in ("a", "b"):
        handle = app.throttle.fan_out(some(app, 2), name)
    assert sorted(waiting(app)) == ["0", "1"]
    assert handle.progress().complete


def test_a_task_whose_row_is_damaged_stops_no_other(app: Any, client: Any) -> None:
    app.throttle.fan_out(some(app, 3), "nightly")
    client.hset("{throttle}:messages:redis/0/celery", "1", b"\xc1")
    client.hdel(app.throttle.keys.fan_out_tasks("nightly", "1"), "1")  # a call that was cut short
    handle = app.throttle.fan_out(some(app, 4), "nightly")
    assert waiting(app) == ["0", "1", "2", "3"]
    assert handle.progress().waiting == 4


def test_a_publisher_holds_while_enough_wait(app: Any) -> None:
    sending = threading.Thread(
        target=app.throttle.fan_out,
        args=(some(app, 20), "nightly"),
        kwargs={"max_waiting": 5},
        daemon=True,
    )
    sending.start()
    most, taken = 0, 0
    while sending.is_alive():
        found = in_line(app)
        most = max(most, len(found))
        if len(found) == 5:
            withdraw(app, found[0])
            taken += 1
        time.sleep(0.01)
    assert (most, taken + len(in_line(app))) == (5, 20)


def withdraw(app: Any, *task_ids: str) -> None:
    """Withdraw tasks from their line, as a worker does."""
    keys = app.throttle.keys
    queue = keys.queue("redis/0/celery")
    app.throttle.store.run(withdraw_call(keys, "w", queue, 1, task_ids, lease=1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["few", "shared", "keys"])
def test_a_publisher_holds_where_a_limit_has_no_room(app: Any, name: str) -> None:
    sending = threading.Thread(
        target=app.throttle.fan_out, args=(some(app, 5, name), "nightly"), daemon=True
    )
    sending.start()
    least = {"few": 3, "shared": 3, "keys": 2}[name]
    seen = []
    while sending.is_alive():
        found = in_line(app)
        seen.append(len(found))
        if len(found) >= least:
            withdraw(app, found[0])
        time.sleep(0.01)
    assert max(seen) == least
    assert app.throttle.fan_out_named("nightly").progress().sent == 5


def test_more_keys_than_there_may_ever_be(app: Any) -> None:
    app.tasks["keys"].throttle = ["keys:{key}", "keys:a", "keys:b"]
    app.throttle.declared.tasks.clear()
    with pytest.raises(KeysFullError):
        app.throttle.fan_out([app.tasks["keys"].s("c")], "nightly")


WRONG = {
    "no signature": (lambda _: "one", FanOutError, "'one' is no signature"),
    "chain": (lambda app: chain(app.tasks["one"].s(), app.tasks["one"].s()), FanOutError, "chain"),
    "group": (lambda app: group([app.tasks["one"].s()], app=app), FanOutError, "group"),
    "unknown": (lambda app: app.signature("gone"), FanOutError, "task 'gone' is not known"),
    "free": (lambda app: app.tasks["free"].s(), FanOutError, "has no limit"),
    "eta": (lambda app: app.tasks["one"].s().set(countdown=9), FanOutError, "has countdown 9"),
    "cost": (lambda app: app.tasks["costly"].s(7), CostError, "7"),
    "no cost": (lambda app: app.tasks["costly"].s("x"), CostError, "'x'"),
    "key": (lambda app: app.tasks["tenant"].s([]), KeyValueError, "list"),
    "arguments": (lambda app: app.tasks["few"].s(), TypeError, "number"),
    "id": (lambda app: app.tasks["one"].s().set(task_id=7), FanOutError, "'one' has task_id 7"),
    "odd id": (
        lambda app: app.tasks["one"].s().set(task_id="\ud800"),
        FanOutError,
        "allowed: printable text",
    ),
    "route": (
        lambda app: app.tasks["one"].s().set(exchange="x", routing_key="y"),
        FanOutError,
        "exchange 'x' with routing key 'y'",
    ),
}


@pytest.mark.parametrize(("make", "error", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_and_what_came_before_is_sent(
    app: Any, make: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        app.throttle.fan_out([*some(app, 3), make(app), *some(app, 9)], "nightly")
    assert waiting(app) == ["0", "1", "2"]
    assert not app.throttle.fan_out_named("nightly").progress().closed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "'' cannot name a fan-out"),
        ({"name": 7}, "7 cannot name a fan-out"),
        ({"name": "a\ud800"}, "cannot name a fan-out; allowed: text of 1 to 200 printable"),
        ({"name": "a\x1b[2J"}, "cannot name a fan-out"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"max_waiting": True}, "max_waiting is True"),
        ({"keep": 1}, "keep is 1; allowed: seconds, 60 or more"),
        ({"keep": -1}, "keep is -1; allowed: seconds, 60 or more"),
        ({"keep": "long"}, "keep is 'long'; allowed: seconds, 60 or more"),
    ],
)
def test_wrong_arguments(app: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(FanOutError, match=text):
        app.throttle.fan_out(some(app, 1), **arguments)


def test_one_signature_is_not_many(app: Any) -> None:
    with pytest.raises(FanOutError, match="is one signature"):
        app.throttle.fan_out(app.tasks["one"].s())


def test_an_error_tells_which_signature(app: Any) -> None:
    with pytest.raises(TypeError) as raised:
        app.throttle.fan_out([*some(app, 7), app.tasks["few"].s()], "nightly")
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["of signature 7 of a fan-out: few()"]


def test_an_error_of_the_server_tells_which_signature(app: Any) -> None:
    with pytest.raises(CostError) as raised:
        app.throttle.fan_out([*some(app, 300), app.tasks["costly"].s(7).set(task_id="x")])
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["of signature 300 of a fan-out: task_id 'x'"]


def test_the_first_protocol_has_no_fan_outs(make_app: MakeApp) -> None:
    app = make_app(task_protocol=1)
    with pytest.raises(ConfigurationError, match="task_protocol is 1"):
        app.throttle.fan_out(some(app, 1))


def test_eager_tasks_have_no_lines(make_app: MakeApp) -> None:
    app = make_app(task_always_eager=True)
    with pytest.raises(ConfigurationError, match="task_always_eager"):
        app.throttle.fan_out(some(app, 1))


def test_without_lines_there_are_no_fan_outs(make_app: MakeApp) -> None:
    app = make_app(throttle_waiting="broker")
    with pytest.raises(ConfigurationError, match="throttle_waiting is 'broker'"):
        app.throttle.fan_out(some(app, 1))


def test_replicas_have_to_confirm(make_app: MakeApp) -> None:
    app = make_app(throttle_replicas=1)
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):
        app.throttle.fan_out(some(app, 3), "nightly")
    assert waiting(app) == ["0", "1", "2"]


def test_an_unknown_name(app: Any) -> None:
    with pytest.raises(UnknownFanOutError, match="'nightly'"):
        app.throttle.fan_out_named("nightly")


def test_signatures_are_taken_one_by_one(app: Any) -> None:
    """At most two batches of signatures are read ahead of the lines."""
    ahead = []

    def signatures() -> Iterator[Any]:
        for number, signature in enumerate(some(app, 2000)):
            if number % 100 == 0:
                ahead.append(number - len(in_line(app)))
            yield signature

    app.throttle.fan_out(signatures(), "nightly")
    assert max(ahead) <= 2 * MAX_BATCH_TASKS


def test_a_server_that_is_lost_for_a_while(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without a reply is sent again, and its tasks are in their lines once."""
    store = app.throttle.store
    app.throttle.register()
    finish, run = store.finish, store.run
    lost = iter([False, True, False])
    cut = iter([True, True, False])

    def finish_or_not(begun: Any) -> Any:
        reply = finish(begun)
        if next(lost, False):
            raise StoreUnavailableError("cut")
        return reply

    def run_or_not(call: Any) -> Any:
        if next(cut, False):
            raise StoreUnavailableError("cut")
        return run(call)

    monkeypatch.setattr(store, "finish", finish_or_not)
    monkeypatch.setattr(store, "run", run_or_not)
    monkeypatch.setattr(retry, "RETRY_INTERVAL_SECONDS", 0.0)
    app.throttle.fan_out(some(app, 1000), "nightly")
    monkeypatch.undo()
    assert sorted(waiting(app), key=int) == [str(n) for n in range(1000)]
    assert app.throttle.fan_out_named("nightly").progress().sent == 1000


def test_a_server_that_is_lost_for_good(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(retry, "RETRY_INTERVAL_SECONDS", 0.0)

    def lost(_: Any) -> Any:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(app.throttle.store, "begin", lost)
    monkeypatch.setattr(app.throttle.store, "run", lost)
    with pytest.raises(StoreUnavailableError, match="gone"):
        app.throttle.fan_out(some(app, 1000), "nightly")


def test_cancel(app: Any, client: Any) -> None:
    signatures = [app.tasks["tenant"].s(f"t{n % 7}").set(task_id=str(n)) for n in range(700)]
    handle = app.throttle.fan_out(signatures, "nightly")
    app.throttle.fan_out([app.tasks["one"].s().set(task_id="other")], "other")
    end(app, "nightly", ("5", "done"))
    withdraw(app, "6")
    withdraw(app, "5")
    assert handle.cancel() == 698
    assert waiting(app) == ["other"]
    progress = handle.progress()
    assert (progress.sent, progress.waiting, progress.running) == (700, 0, 1)
    assert (progress.done, progress.revoked) == (1, 698)
    assert progress.cancelled
    assert handle.cancel() == 0
    assert app.AsyncResult("8").state == "REVOKED"
    assert client.get("{throttle}:backlog:api") == b"1"
    with pytest.raises(FanOutError, match="'nightly' was cancelled"):
        app.throttle.fan_out([app.tasks["tenant"].s("new")], "nightly")


@pytest.mark.parametrize("conf", [{}, {"task_ignore_result": True}])
def test_a_cancel_leaves_ignored_results_alone(make_app: MakeApp, conf: dict[str, bool]) -> None:
    """As Celery does for revoked tasks. Also of a task that goes back to its line afterwards."""
    app = make_app(**conf)
    ids = ["ignored 0", "ignored 1", "kept 0", "kept 1"]
    signatures = [
        app.tasks["one"].s().set(task_id=each, ignore_result="ignored" in each) for each in ids
    ]
    handle = app.throttle.fan_out(signatures, "nightly")
    withdraw(app, "ignored 1", "kept 1")
    assert handle.cancel() == 2
    claims = [(number, ClaimStatus.HELD) for number in (1, 2)]
    app.throttle.store.run(requeue_call(app.throttle.keys, "w", "own", 2, claims))
    assert handle.wait(timeout=1).revoked == 4
    states = [app.AsyncResult(each).state for each in ids]
    assert states == ["PENDING", "PENDING", "REVOKED", "REVOKED"]


def test_a_cancel_stores_errors_of_tasks_that_ignore_only_their_returns(make_app: MakeApp) -> None:
    app = make_app(task_ignore_result=True, task_store_errors_even_if_ignored=True)
    handle = app.throttle.fan_out(some(app, 1), "nightly")
    assert handle.cancel() == 1
    assert app.AsyncResult("0").state == "REVOKED"


def test_a_cancel_that_is_cut_short_is_finished_by_another(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = app.throttle.fan_out(some(app, 5), "nightly")
    calls = itertools.count()
    mark = app.backend.mark_as_revoked

    def cut(*args: Any) -> None:
        if next(calls) == 2:
            raise ConnectionError
        mark(*args)

    monkeypatch.setattr(app.backend, "mark_as_revoked", cut)
    with pytest.raises(ConnectionError):
        handle.cancel()
    assert waiting(app) == []
    assert handle.cancel() == 0
    assert [app.AsyncResult(str(n)).state for n in range(5)] == ["REVOKED"] * 5
    assert handle.wait(timeout=1).cancelled


def lose_connections(store: Store) -> None:
    while (connection := store.connections.take_idle()) is not None:
        connection.close()


def shrink_buffers(store: Store) -> None:
    """Let sockets take a part of a large call at a time."""
    connection: Any = store.connections.take_idle()
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    store.connections.put(connection)


@pytest.mark.parametrize("prepare", [lose_connections, shrink_buffers])
def test_a_full_batch_does_not_wait_for_the_next_signature(
    app: Any, prepare: Callable[[Store], None]
) -> None:
    def signatures() -> Iterator[Any]:
        for number in range(3):  # each is a full batch
            if number == 1:
                prepare(app.throttle.store)
            if number == 2:
                wait_until(lambda: len(in_line(app)) == 2, "two tasks in their line", 10)
            yield app.tasks["one"].s("x" * MAX_BATCH_BYTES).set(task_id=str(number))

    app.throttle.fan_out(signatures(), "nightly")
    assert len(in_line(app)) == 3


def test_a_cancel_of_large_tasks(app: Any) -> None:
    """One call revokes a few of them, though they are in one key of the record."""
    number = app.throttle.keys.fan_out_number
    found = [task_id for task_id in map(str, range(1000)) if number(task_id) == 0][:10]
    task = app.tasks["one"]
    signatures = [task.s("x" * 300_000).set(task_id=task_id) for task_id in found]
    handle = app.throttle.fan_out(signatures, "nightly")
    seen: list[int] = []
    assert handle.cancel(seen.append) == 10
    assert list(dict.fromkeys(seen)) == [4, 8, 10]
    assert waiting(app) == []


def test_what_goes_back_to_a_cancelled_fan_out_is_revoked(app: Any) -> None:
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    withdraw(app, "1")
    handle.cancel()
    keys = app.throttle.keys
    app.throttle.store.run(requeue_call(keys, "w", "own", 1, [(1, ClaimStatus.HELD)]))
    assert waiting(app) == []
    assert handle.progress().complete
    assert [result.state for result in handle.results()] == ["REVOKED"] * 3


def test_what_is_left_of_a_cancelled_fan_out_expires(app: Any, client: Any) -> None:
    """Also if all tasks returned to their lines after the cancel."""
    handle = app.throttle.fan_out(some(app, 1), "nightly", keep=100)
    withdraw(app, "0")
    assert handle.cancel() == 0
    keys = app.throttle.keys
    app.throttle.store.run(requeue_call(keys, "w", "own", 1, [(1, ClaimStatus.HELD)]))
    assert client.ttl(f"{keys.fan_out('nightly')}:ended") == 100
    assert handle.wait(timeout=1).revoked == 1
    assert app.AsyncResult("0").state == "REVOKED"


def test_results_that_go_to_one_process_only_are_left_to_workers(redis_url: str) -> None:
    app: Any = Celery("shop", broker=redis_url, backend="rpc://", set_as_current=False)
    throttle = Throttle(app, {"api": "1/h"})

    @app.task(name="one", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def one(number: int) -> None: ...

    handle = throttle.fan_out(some(app, 3), "nightly")
    assert handle.cancel() == 3
    assert handle.wait(timeout=1).revoked == 3
    throttle.store.close()
    app.close()


def test_a_full_server_is_made_room_on(make_app: MakeApp, client: Any) -> None:
    """Tasks can be cancelled, and their ends and the change recorded."""
    app = make_app(task_ignore_result=True)
    handle = app.throttle.fan_out(some(app, 50), "nightly")
    withdraw(app, "0")
    client.config_set("maxmemory", 1)
    try:
        end(app, "nightly", ("0", "done"))
        assert handle.cancel() == 49
        assert app.throttle.changes()[0].action == "cancel"
    finally:
        client.config_set("maxmemory", 0)
    progress = handle.progress()
    assert (progress.waiting, progress.done, progress.revoked) == (0, 1, 49)


def test_many_queues(app: Any, client: Any) -> None:
    signatures = [app.tasks["one"].s().set(queue=f"q{n}", task_id=str(n)) for n in range(120)]
    handle = app.throttle.fan_out(signatures, "nightly")
    assert len(in_line(app)) == 120
    handle.pause()
    assert handle.cancel() == 120
    assert in_line(app) == []
    kept = {client.ttl(key) for key in client.keys("{throttle}:fan-out:*")}
    assert kept
    assert kept <= {*range(86_400 - 60, 86_400 + 1)}  # a minute may pass until here


def test_a_limit_of_several_queues_has_room_once(app: Any) -> None:
    signatures = [app.tasks["few"].s(n).set(queue=f"q{n % 4}") for n in range(12)]
    sending = threading.Thread(
        target=app.throttle.fan_out, args=(signatures, "nightly"), daemon=True
    )
    sending.start()
    wait_until(lambda: len(in_line(app)) == 3, "three tasks wait")
    time.sleep(0.5)  # for a fourth to show
    assert len(in_line(app)) == 3
    app.throttle.fan_out_named("nightly").cancel()
    sending.join()


def test_slow_signatures_do_not_wait_for_each_other(app: Any) -> None:
    seen = []

    def signatures() -> Iterator[Any]:
        for number in range(4):
            time.sleep(0.15)
            seen.append(len(in_line(app)))
            yield app.tasks["one"].s(number)

    app.throttle.fan_out(signatures(), "nightly")
    assert seen[-1] >= 1


def test_the_first_batch_does_not_wait_for_the_second(
    app: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the server has no scripts and no limits yet."""
    # On a busy machine a batch that is not full would be sent before.
    monkeypatch.setattr("celery_throttle.bulk.fan_out.publisher.MAX_BATCH_SECONDS", 60.0)
    client.script_flush()
    seen = []

    def signatures() -> Iterator[Any]:
        yield from some(app, MAX_BATCH_TASKS)
        seen.append(len(in_line(app)))
        yield app.tasks["one"].s()

    app.throttle.fan_out(signatures(), "nightly")
    assert seen == [MAX_BATCH_TASKS]


def test_what_was_taken_before_an_interrupt_is_in_its_line(app: Any) -> None:
    def signatures() -> Iterator[Any]:
        yield from some(app, 230)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.throttle.fan_out(signatures(), "nightly")
    assert len(waiting(app)) == 230


def test_a_pause_is_forgotten_with_the_fan_out(app: Any, client: Any) -> None:
    handle = app.throttle.fan_out(some(app, 1), "nightly", keep=100)
    handle.pause()
    withdraw(app, "0")
    assert 0 < client.ttl("{throttle}:pause:@fan-out:nightly") <= 100
    handle.pause()
    assert 0 < client.ttl("{throttle}:pause:@fan-out:nightly") <= 100
    client.flushall()
    with pytest.raises(UnknownFanOutError):
        handle.pause()
    assert not client.keys("*")


def test_how_fast_it_is_does_not_count_an_idle_time(app: Any, client: Any) -> None:
    handle = app.throttle.fan_out(some(app, 9), "nightly")
    long_ago = int(time.time() * 1e6) - 3_600_000_000
    client.hset(
        app.throttle.keys.fan_out("nightly"), mapping={"old_at": long_ago, "new_at": long_ago}
    )
    began = time.time()
    end(app, "nightly", ("0", "done"), ("1", "done"))
    time.sleep(1.1)
    rate = handle.progress().rate
    assert rate is not None
    assert 2 / (time.time() - began) <= rate < 2
    client.hset(app.throttle.keys.fan_out("nightly"), "new_at", int(time.time() * 1e6) - 11_000_000)
    assert handle.progress().rate is None


def test_a_publisher_stops_when_it_is_cancelled(app: Any) -> None:
    def signatures() -> Iterator[Any]:
        for number in itertools.count():
            if number == 1000:
                app.throttle.fan_out_named("nightly").cancel()
            yield app.tasks["one"].s(number)

    app.throttle.fan_out(signatures(), "nightly")
    assert waiting(app) == []


def test_results_come_in_the_order_in_which_tasks_end(app: Any) -> None:
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    for task_id in ("2", "0"):
        app.backend.store_result(task_id, int(task_id) * 10, "SUCCESS")
        end(app, "nightly", (task_id, "done"))
    results = handle.results(timeout=0.1)
    assert [next(results).get(), next(results).get()] == [20, 0]
    with pytest.raises(WaitedTooLong):
        next(results)
    end(app, "nightly", ("1", "failed"))
    assert [result.id for result in handle.results()] == ["2", "0", "1"]
    assert handle.wait(timeout=1).failed == 1


@pytest.mark.parametrize("backend", [None, "rpc://"])
def test_results_need_a_backend_that_others_can_read(redis_url: str, backend: Any) -> None:
    other: Any = Celery("shop", broker=redis_url, backend=backend, set_as_current=False)
    handle = Throttle(other, {"api": "1/h"}).fan_out([])
    with pytest.raises(ConfigurationError, match=r"cannot be read from (Disabled|RPC)Backend"):
        handle.results()
    other.close()


def test_its_name_is_known_before_its_first_task(app: Any) -> None:
    def signatures() -> Iterator[Any]:
        assert app.throttle.fan_out_named("nightly").progress().sent == 0
        yield from some(app, 1)

    assert app.throttle.fan_out(signatures(), "nightly").progress().sent == 1


def test_waiting_for_it_has_an_end(app: Any) -> None:
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    with pytest.raises(WaitedTooLong, match="nightly"):
        handle.wait(timeout=0.1)


@pytest.mark.parametrize("timeout", [-1, math.nan, True, "long"])
def test_a_timeout_is_a_number_of_seconds(app: Any, timeout: Any) -> None:
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    for wait in (handle.wait, handle.watch, lambda timeout: next(handle.results(timeout))):
        with pytest.raises(LimitValueError, match=r"a timeout of .*: seconds"):
            wait(timeout=timeout)


def test_waiting_for_a_lost_server_has_the_same_end(make_app: MakeApp, own_server: Server) -> None:
    app = make_app(throttle_url=own_server.url)
    handle = app.throttle.fan_out(some(app, 3), "nightly")
    own_server.stop()
    began = time.monotonic()
    for wait in (handle.wait, lambda timeout: next(handle.results(timeout))):
        with pytest.raises(StoreUnavailableError):
            wait(timeout=0.5)
    assert 1 <= time.monotonic() - began < 10
    own_server.start()


def test_nothing_expires_while_tasks_wait_and_everything_after(app: Any, client: Any) -> None:
    def lifetimes() -> set[int]:
        return {client.ttl(key) for key in client.keys("{throttle}:fan-out:*")}

    handle = app.throttle.fan_out(some(app, 100), "nightly", keep=100)
    end(app, "nightly", ("0", "done"))
    assert lifetimes() == {-1}
    for number in range(100):
        withdraw(app, str(number))
    assert lifetimes() == {100}
    app.throttle.fan_out(some(app, 101), "nightly", keep=200)
    assert lifetimes() == {-1}
    withdraw(app, "100")
    end(app, "nightly", *((str(n), "done") for n in range(101)))
    assert lifetimes() == {200}
    assert handle.progress().complete
    client.flushall()
    end(app, "nightly", ("0", "done"))
    assert not client.keys("*")


def test_a_pause_is_seen_and_ends(app: Any) -> None:
    handle = app.throttle.fan_out(some(app, 1), "nightly")
    handle.pause()
    assert handle.progress().paused == float("inf")
    handle.resume()
    assert handle.progress().paused == 0
    handle.pause(60)
    assert 59 < handle.progress().paused <= 60


def test_packed_messages_can_be_read(app: Any, client: Any) -> None:
    app.throttle.fan_out(some(app, 3), "ä name")
    entry = client.hget("{throttle}:messages:redis/0/celery", "2")
    start = entry.index(b'{"headers"') - 5
    assert packing.headers(entry[start:])["throttle_fan_out"] == "ä name"


def test_a_script_says_what_it_waits_for(tmp_path: Path) -> None:
    """Without logging set up, while the server cannot be reached."""
    script = "from tests.apps import bulk; bulk.throttle.fan_out([bulk.call.s(1)], 'n')"
    port = free_port()
    env = {
        "CELERY_BROKER_URL": f"redis://user:secret@127.0.0.1:{port}/0",
        "PYTHONPATH": str(ROOT),
    }
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", script], env=env, stderr=file) as process,
    ):
        wait_until(lambda: "at most" in errors.read_text(), "it says so")
        assert process.poll() is None, "it still tries"
        process.kill()
    text = " ".join(errors.read_text().split())
    assert "Fan-out n waits for the server of its limits, for 60 s at most: " in text
    assert f"the server at redis://127.0.0.1:{port}/0 cannot be reached" in text
    assert "secret" not in text


def test_disabled_limits_take_the_same_signatures(make_app: MakeApp) -> None:
    """Also dicts, as they come from JSON."""
    app = make_app(throttle_enabled=False)
    job = app.throttle.fan_out([{"task": "free"}, app.tasks["one"].s(1)])
    assert job.progress().sent == 2
    with pytest.raises(FanOutError, match="42 is no signature"):
        app.throttle.fan_out([42])
    with pytest.raises(FanOutError, match="a group cannot be part of a fan-out"):
        app.throttle.fan_out([group(app.tasks["one"].s(1), app.tasks["one"].s(2))])


def test_disabled_limits_do_not_wait_for_ignored_results(make_app: MakeApp) -> None:
    app = make_app(throttle_enabled=False)
    job = app.throttle.fan_out([app.tasks["one"].s(1).set(ignore_result=True)])
    assert job.wait(timeout=1).done == 1
