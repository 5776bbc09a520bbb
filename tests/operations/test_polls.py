"""When workers poll for tasks that wait, by the replies of claims, at given times.

Laws at stake: *never idle* (each start finds a worker that polls in time) and *little work* (the
polls for one start do not grow with the workers).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise

import pytest
import redis

from tests.protocol import SECOND, Make, Protocol, make_protocols

HORIZON = 20_000
SPACING = 50_000  # of starts at 20/s


@pytest.fixture
def make(any_server_url: str) -> Iterator[Make]:
    yield from make_protocols(any_server_url)


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make({"paced": "20/s"})


def run_workers(lines: Protocol, workers: int, *, stopped: int = 0) -> tuple[list[int], int]:
    """Let workers with one process each run short tasks for three seconds.

    Some of the workers stop after a second. Returns the times of the starts, and the number of
    claim calls in the last two seconds.
    """
    for number in range(200):
        lines.park(str(number), ["paced"], may_run=False)
    began, starts, calls = lines.now, [], 0
    polls = [(began + number, f"w{number}") for number in range(workers)]
    while polls[0][0] < began + 3 * SECOND:
        lines.now, worker = heapq.heappop(polls)
        if lines.now > began + SECOND:
            calls += 1
            if stopped:
                stopped -= 1
                continue
        free = lines.now
        for row in lines.claim(worker, ahead=HORIZON):
            free = lines.now + row.starts
            starts.append(free)
        heapq.heappush(polls, (max(free, lines.now + lines.ask) + 1, worker))
    return starts, calls


@pytest.mark.parametrize("workers", [1, 2, 8, 32, 64])
def test_polls_do_not_grow_with_the_workers(lines: Protocol, workers: int) -> None:
    """Workers for which there is nothing to do poll once a second besides."""
    starts, calls = run_workers(lines, workers)
    assert {after - before for before, after in pairwise(starts)} == {SPACING}
    assert calls <= 1.2 * 2 * SECOND / SPACING + 2 * workers


@pytest.mark.parametrize("stopped", [1, 3])
def test_a_worker_that_stops_delays_one_start_by_a_gap(lines: Protocol, stopped: int) -> None:
    starts, _ = run_workers(lines, 8, stopped=stopped)
    waits = [after - before for before, after in pairwise(starts)]
    assert max(waits) <= SPACING + stopped * 100_000
    assert sum(wait > SPACING for wait in waits) <= stopped
    assert starts[-1] > 2_900_000 + starts[0]


def test_a_worker_whose_process_is_taken_polls_for_the_next_start(lines: Protocol) -> None:
    """Not at once: the limit has no room before. Other workers need not poll meanwhile."""
    for task in "ab":
        lines.park(task, ["paced"], may_run=False)
    assert [row.id for row in lines.claim(ahead=HORIZON)] == ["a"]
    assert lines.ask == SPACING - HORIZON
    lines.claim("other", ahead=HORIZON)
    assert lines.ask == 2 * SPACING - HORIZON


def test_a_limit_that_has_room_is_polled_for_at_once(lines: Protocol) -> None:
    lines.limiter["paced"].define("20/s burst 5")
    for task in "ab":
        lines.park(task, ["paced"], may_run=False)
    assert [row.id for row in lines.claim(ahead=HORIZON)] == ["a"]
    assert lines.ask == 0


def test_a_worker_without_a_process_wakes_another(lines: Protocol, any_server_url: str) -> None:
    """The others expect it to poll, so they would be late."""
    for task in "ab":
        lines.park(task, ["paced"], may_run=False)
    lines.claim("first", ahead=HORIZON)
    lines.claim("second", ahead=HORIZON)
    with redis.Redis.from_url(any_server_url) as client, client.pubsub() as channel:
        channel.subscribe(lines.keys.wakeup_channel("second"))
        channel.get_message(timeout=5)
        lines.now += SPACING - HORIZON
        assert lines.claim("first", room=0, ahead=HORIZON) == []
        assert channel.get_message(timeout=5)
    assert [row.id for row in lines.claim("second", ahead=HORIZON)] == ["b"]
