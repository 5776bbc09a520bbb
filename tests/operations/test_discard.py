"""Discards the tasks in lines of a queue; the data are consistent between the steps."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.operations.lines import discard
from celery_throttle.store.script import Call, script
from tests.protocol import SECOND, Make, Protocol

LIMITS = {"api": "1/h", "mail": "1/h", "keys": "1/h max-keys 3", "few": "1/h max-waiting 10"}


@pytest.fixture
def lines(make: Make) -> Protocol:
    """Lines of all kinds in two queues."""
    lines = make(LIMITS)
    for name in ("api", "mail", "few"):
        lines.limiter[name].pause(3600)
    for number in range(10):
        for queue in ("q", "other"):
            lines.park(f"plain {queue} {number}", ["api"], queue=queue, rank=number % 3)
            lines.park(f"both {queue} {number}", ["api", "mail"], queue=queue)
        for tenant in range(3):
            lines.park(f"tenant {tenant} {number}", ["api", ("mail", str(tenant))], rank=number % 2)
    for key in range(4):
        lines.park(f"key {key} 1", [("keys", str(key))])
        lines.park(f"key {key} 2", [("keys", str(key))])
    lines.check()
    return lines


def key_cap(lines: Protocol) -> list[tuple[bytes, float]]:
    found: list[tuple[bytes, float]] = lines.client.zrange(
        "{throttle}:key-cap:keys", 0, -1, withscores=True
    )
    assert len(found) == 3
    return found


def step(lines: Protocol, most: int, queue: str = "q") -> tuple[int, int]:
    names = [*lines.keys.queue(queue), lines.keys.totals()]
    call = Call(script("discard"), names, [lines.now, most])
    discarded, left = lines.store.run(call)
    return discarded, left


@pytest.mark.parametrize("most", [1, 3, 7, 500])
def test_all_is_right_after_each_step(lines: Protocol, most: int) -> None:
    waiting = len(lines.waiting())
    assert any(score > lines.now * 10 for _, score in key_cap(lines))
    total, left = 0, 1
    while left:
        discarded, left = step(lines, most)
        assert discarded <= most
        total += discarded
        lines.check()
    assert total == waiting - 20
    assert len(lines.waiting()) == 20
    # What was used of the keys counts on; lines that hold tasks of them are no more.
    assert all(score < lines.now * 10 for _, score in key_cap(lines))
    step(lines, 500, "other")
    assert not lines.client.keys("{throttle}:waiting-lists:*") + lines.client.keys(
        "{throttle}:waiting-list-index:*"
    )


def test_there_is_room_again(lines: Protocol) -> None:
    parked = [lines.park(str(number), ["few"]).outcome for number in range(12)]
    assert parked == ["parked"] * 10 + ["full"] * 2
    lines.limiter.run_plan(discard(lines.keys, "q"))
    assert lines.park("more", ["few"]).outcome == "parked"
    assert lines.park("key", [("keys", "new")]).outcome in ("admitted", "parked")


def test_what_a_worker_has_goes_on(lines: Protocol) -> None:
    lines.limiter["api"].reset()
    [claim] = lines.claim(queues=["q"])
    lines.limiter.run_plan(discard(lines.keys, "q"))
    lines.check()
    assert lines.back("w", "own", claim.token) == 0
    lines.check()
    assert claim.id in lines.waiting()


def test_tasks_that_were_set_aside_are_discarded_too(lines: Protocol) -> None:
    lines.limiter["api"].reset()
    [claim] = lines.claim(queues=["q"])
    lines.set_aside("w", claim.token)
    expected = len(lines.waiting()) - 20 + 1
    assert lines.limiter.run_plan(discard(lines.keys, "q")) == expected
    assert not lines.client.exists(lines.keys.quarantine)


@pytest.mark.parametrize("lost", ["due", "waiting", "line", "lines", "messages"])
def test_what_is_left_where_the_server_has_lost_keys(lines: Protocol, lost: str) -> None:
    client: Any = lines.client
    names = {"waiting": "{throttle}:waiting:*/q", "line": "{throttle}:line:*"}
    for key in client.keys(names.get(lost, f"{{throttle}}:{lost}:q")):
        client.delete(key)
    lines.limiter.run_plan(discard(lines.keys, "q"))
    for kind in ("lines", "messages", "due"):
        assert not client.exists(f"{{throttle}}:{kind}:q"), kind


def said_at(lines: Protocol, said: int) -> tuple[int, int]:
    consumed = "{throttle}:consumed"
    lines.client.zadd(consumed, {lines.keys.queue("q").lines: said})
    lines.client.expire(consumed, 60)
    names = [*lines.keys.queue("q"), consumed, lines.keys.totals()]
    args = [lines.now, 500, 10 * SECOND]
    discarded, left = lines.store.run(Call(script("discard"), names, args))
    return discarded, left


def test_a_queue_that_a_worker_consumes_is_left_alone(lines: Protocol) -> None:
    waiting = lines.waiting()
    assert said_at(lines, lines.now - 10 * SECOND + 1) == (0, -1)
    assert lines.waiting() == waiting


def test_a_queue_that_is_gone_is_forgotten(lines: Protocol) -> None:
    waiting = len(lines.waiting())
    assert said_at(lines, lines.now - 10 * SECOND) == (waiting - 20, 0)
    assert not lines.client.exists("{throttle}:consumed")


def test_a_queue_that_goes_with_its_consumer_is_known_while_it_holds_tasks(make: Make) -> None:
    """Also by those that come back from a worker that has died."""
    lines = make({"api": "1/h burst 2"})
    lines.park("none", ["api"], temporary=True)
    assert not lines.client.exists("{throttle}:temporary")
    lines.park("first", ["api"], temporary=True, may_run=False)
    lines.now += SECOND
    assert lines.client.zscore("{throttle}:temporary", "{throttle}:lines:q") == 1_000 * SECOND
    [claim] = lines.claim()
    assert not lines.client.exists("{throttle}:temporary")
    lines.back("w", "own", claim.token)
    assert lines.client.zscore("{throttle}:temporary", "{throttle}:lines:q") == lines.now
    lines.limiter.run_plan(discard(lines.keys, "q"))
    assert lines.client.zscore("{throttle}:temporary", "{throttle}:lines:q") is None


@pytest.mark.parametrize("packed", [b"", b"\x01", b"\x01\xc1", b"\x01\x91\x01", b"\x09\x80"])
@pytest.mark.parametrize("most", [1, 500])
def test_a_damaged_descriptor_keeps_no_other_line(
    lines: Protocol, packed: bytes, most: int
) -> None:
    """Its own tasks are discarded like those of a line whose descriptor is lost."""
    names = lines.client.hkeys(lines.keys.queue("q").lines)
    for name in names[::2]:
        lines.client.hset(lines.keys.queue("q").lines, name, packed)
    others, left = lines.client.hlen(lines.keys.queue("other").messages), 1
    while left:
        _, left = step(lines, most)
    assert not lines.client.exists(*lines.keys.queue("q"), *names)
    assert lines.client.hlen(lines.keys.queue("other").messages) == others
    while step(lines, 500, "other")[1]:
        pass
    # What cannot be found without the descriptors is tidied up when their limits are used next.
    lines.park("plain", ["api"])
    for key in range(4):
        lines.park(str(key), [("keys", str(key))])
    while step(lines, 500)[1]:
        pass
    lines.check()
