"""When workers poll for tasks that wait, by the replies of claims, at given times.

Laws at stake: *never idle* (each start finds a worker that polls in time) and *little work* (the
polls for one start do not grow with the workers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
import redis

from tests.operations.virtual_workers import HORIZON, Workers
from tests.protocol import SECOND, Make, Protocol, make_protocols

SPACING = 50_000  # of starts at 20/s


@pytest.fixture
def make(any_server_url: str) -> Iterator[Make]:
    yield from make_protocols(any_server_url)


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make({"paced": "20/s"})


def park(lines: Protocol, tasks: int, keys: int = 0) -> None:
    for number in range(tasks):
        limit = ("paced", f"k{number % keys}") if keys else "paced"
        lines.park(str(number), [limit], may_run=False)


def late(most: int) -> Callable[[], int]:
    """Return lateness of up to some microseconds, by chance."""
    random = Random(1)
    return lambda: random.randint(0, most)


@pytest.mark.parametrize("workers", [1, 2, 8, 32, 64, 150])
def test_polls_do_not_grow_with_the_workers(lines: Protocol, workers: int) -> None:
    """At most two workers poll for one start; what has ended is reported with these polls."""
    park(lines, 150 + workers)
    pool = Workers(lines, workers)
    pool.run(1 + workers * SPACING / SECOND)  # the workers begin all at once
    began, before = len(pool.gaps()), sum(pool.calls.values())
    pool.run(2)
    assert set(pool.gaps()) == {SPACING}
    starts = len(pool.gaps()) - began
    assert sum(pool.calls.values()) - before <= 2.1 * starts, pool.calls


@pytest.mark.parametrize("workers", [2, 8, 32, 64])
def test_tasks_that_come_cost_each_idle_worker_one_poll(lines: Protocol, workers: int) -> None:
    """It has set that poll while nothing waited; from then on two poll for each start."""
    pool = Workers(lines, workers, lateness=late(2_000))
    pool.run(3)
    park(lines, 250)
    before = sum(pool.calls.values())
    pool.run(10)
    starts = len(pool.gaps()) + 1
    assert starts >= 200
    assert sum(pool.calls.values()) - before <= 2 * starts + workers, pool.calls


def test_polls_are_in_step_again_after_late_ones(lines: Protocol) -> None:
    """A late start delays those after it, and polls that were set before would find nothing."""
    park(lines, 150)
    pool = Workers(lines, 8, lateness=late(30_000))
    pool.run(2)
    pool.lateness = lambda: 0
    pool.run(1)
    began, before = len(pool.gaps()), sum(pool.calls.values())
    pool.run(2)
    starts = len(pool.gaps()) - began
    assert sum(pool.calls.values()) - before <= 2.1 * starts, pool.calls


@pytest.mark.parametrize(("limit", "workers"), [("100/s", 4), ("200/s", 2), ("200/s", 4)])
def test_one_poll_serves_several_starts(make: Make, limit: str, workers: int) -> None:
    """One that comes every 10 ms serves all starts that are due within 20 ms.

    Each process is booked for the next start before it has ended the task that it runs.
    """
    lines = make({"paced": limit})
    park(lines, 500)
    pool = Workers(lines, workers, processes=2, task=4_000, lateness=late(1_000))
    pool.run(0.5)
    before = sum(pool.calls.values())
    pool.run(1.0)
    assert pool.used(SECOND / int(limit[:-2])) > 0.999
    assert pool.longest_delay <= 5_000
    assert sum(pool.calls.values()) - before <= 1.1 * SECOND / 10_000, pool.calls


@pytest.mark.parametrize(
    ("keys", "workers", "processes", "most"), [(20, 4, 2, 0.6), (50, 1, 12, 0.3), (80, 4, 6, 0.6)]
)
def test_a_worker_that_lacks_processes_claims_for_several_at_once(
    make: Make, keys: int, workers: int, processes: int, most: float
) -> None:
    """It does not poll for each process that becomes free, as long as the next start is far."""
    lines = make({"paced": "10/s"})
    park(lines, 30 * keys, keys)
    began = lines.now
    for key in range(keys):  # the starts are spread evenly
        lines.now = began + SECOND // 10 * key // keys
        lines.limiter["paced", f"k{key}"].acquire()
    pool = Workers(lines, workers, processes, lateness=late(2_000))
    pool.run(0.5)
    before, since = sum(pool.calls.values()), lines.now
    pool.run(1.5)
    assert pool.used(SECOND / 10, since=since) > 0.999
    assert pool.longest_delay == 0
    assert sum(pool.calls.values()) - before <= most * 15 * keys, pool.calls


@pytest.mark.parametrize(
    ("limit", "workers", "processes"),
    [
        ("50/s", 32, 2),
        ("100/s", 10, 20),
        ("100/s", 100, 20),
        ("130/s", 32, 2),
        ("200/s", 10, 2),
        ("200/s", 100, 2),
    ],
)
def test_polls_for_close_starts_do_not_grow_with_the_workers(
    make: Make, limit: str, workers: int, processes: int
) -> None:
    """One poll for two starts, or for one at 50/s, and one report of what has ended."""
    lines, rate = make({"paced": limit}), int(limit[:-2])
    pool = Workers(lines, workers, processes, lateness=late(2_000))
    pool.run(3)
    park(lines, 7 * rate)
    pool.run(3)  # idle workers have set polls
    before = sum(pool.calls.values())
    pool.run(3)
    assert pool.used(SECOND / rate) > 0.99
    polls = 3 * (rate / 2 if rate > 50 else rate)
    assert sum(pool.calls.values()) - before <= 1.02 * 2 * polls, pool.calls


@pytest.mark.parametrize(
    ("limit", "keys", "workers", "processes"),
    [
        *(("20/s", 0, workers, processes) for workers in (4, 8, 32) for processes in (1, 2)),
        *(("100/s", 0, workers, 2) for workers in (4, 8, 32)),
        *(("200/s", 0, workers, 2) for workers in (4, 8, 32)),
        ("2/s", 100, 8, 2),
    ],
)
def test_late_workers_lose_no_quota(
    make: Make, limit: str, keys: int, workers: int, processes: int
) -> None:
    """Polls that are up to 30 ms late, which is more than starts are booked ahead."""
    lines, rate = make({"paced": limit}), int(limit[:-2])
    park(lines, 4 * rate * max(1, keys), keys)
    pool = Workers(lines, workers, processes, lateness=late(30_000))
    began = lines.now
    pool.run(3)
    assert pool.used(SECOND / rate, since=began + SECOND // 2) >= 0.99, pool.calls


@pytest.mark.parametrize(
    ("limit", "stopped", "most"), [("20/s", 1, 0), ("20/s", 2, SPACING), ("100/s", 4, 100_000)]
)
def test_workers_that_stop_delay_no_start_by_much(
    make: Make, limit: str, stopped: int, most: int
) -> None:
    """If one of two that poll for a start stops, the other is in time."""
    lines, spacing = make({"paced": limit}), SECOND // int(limit[:-2])
    park(lines, 400)
    pool = Workers(lines, 8, processes=2)
    pool.run(1)
    expected = sorted(pool.all, key=lambda worker: worker.shards[0].poll_at or 0)
    for worker in expected[:stopped]:  # those that would poll next
        worker.is_stopped = True
    pool.run(2)
    assert max(pool.gaps()) <= spacing + most
    assert max(map(max, pool.starts.values())) > lines.now - spacing


def test_idle_workers_poll_once_a_second(lines: Protocol) -> None:
    pool = Workers(lines, 64)
    pool.run(5)
    assert sum(pool.calls.values()) <= 5 * 64


def test_idle_workers_of_one_queue_poll_a_hundred_times_a_second(lines: Protocol) -> None:
    pool = Workers(lines, 500)
    pool.run(6)  # they begin one after the other
    before = sum(pool.calls.values())
    pool.run(10)
    assert sum(pool.calls.values()) - before <= 10 * 100


def test_a_worker_whose_process_is_taken_polls_for_the_next_start(lines: Protocol) -> None:
    """Not at once: the limit has no room before. Other workers need not poll meanwhile."""
    for task in "ab":
        lines.park(task, ["paced"], may_run=False)
    assert [row.id for row in lines.claim(ahead=HORIZON)] == ["a"]
    assert lines.ask == SPACING - HORIZON
    for worker, starts in (("second", 1), ("third", 2), ("fourth", 3)):
        lines.claim(worker, ahead=HORIZON)
        assert lines.ask == starts * SPACING - HORIZON


def test_a_limit_that_has_room_is_polled_for_at_once(lines: Protocol) -> None:
    lines.limiter["paced"].define("20/s burst 5")
    for task in "ab":
        lines.park(task, ["paced"], may_run=False)
    assert [row.id for row in lines.claim(ahead=HORIZON)] == ["a"]
    assert lines.ask == 0


def test_workers_without_a_process_wake_others(lines: Protocol, any_server_url: str) -> None:
    """Two workers poll for the next start. If both are busy, the others would be late."""
    park(lines, 2)
    assert lines.claim("first", ahead=HORIZON)
    for worker in ("second", "third"):
        lines.claim(worker, ahead=HORIZON)
    with redis.Redis.from_url(any_server_url) as client, client.pubsub() as channel:
        channel.subscribe(lines.keys.wakeup_channel("third"))
        channel.get_message(timeout=5)
        lines.now += SPACING - HORIZON
        lines.claim("first", room=0, ahead=HORIZON)
        channel.ping()
        assert channel.get_message(timeout=5)["type"] == "pong"
        lines.claim("second", room=0, ahead=HORIZON)
        assert channel.get_message(timeout=5)["type"] == "message"
    assert lines.claim("third", ahead=HORIZON)
