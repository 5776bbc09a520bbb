"""Limits in deployed workers: one limit for all, a lost container, a restart, a new release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from tests.servers.server import wait_until
from tests.smoke.fleet import NEXT_RATE, PROCESSES, RATE, SECONDS, Fleet, Record


def assert_within(rate: int, starts: Sequence[Record], *, workers: int = 2) -> None:
    """Fails unless a limit holds in every window; each process may begin one task late."""
    late = workers * PROCESSES
    for index, first in enumerate(starts):
        for count, last in enumerate(starts[index:], start=1):
            assert count <= 1 + rate * (last.at - first.at) + late, (first, last)


def numbers(records: Iterable[Record]) -> list[int]:
    return sorted(record.number for record in records)


def test_two_workers_share_one_limit(fleet: Fleet) -> None:
    fleet.send(range(30), seconds=0.5)  # one worker alone has processes for 4 a second
    fleet.until_ended(30)
    starts = fleet.records("starts")
    assert numbers(starts) == list(range(30))
    assert {start.worker for start in starts} == {worker.hostname() for worker in fleet.workers}
    assert_within(RATE, starts)


def test_the_claims_of_a_killed_container_come_back(fleet: Fleet) -> None:
    fleet.queue_up(8, seconds=2)
    killed = fleet.workers[0]

    def by_killed(stream: str) -> set[int]:
        return {record.number for record in fleet.records(stream) if record.worker == name}

    name = killed.hostname()
    wait_until(lambda: by_killed("starts"), "a start", SECONDS)
    killed.kill()
    fleet.until_ended(8)
    interrupted = by_killed("starts") - by_killed("ends")
    starts = fleet.records("starts")
    times = Counter(numbers(starts))
    assert interrupted
    assert {number for number in times if times[number] > 1} == interrupted
    assert numbers(fleet.records("ends")) == list(range(8))
    assert_within(RATE, starts)


def test_tasks_go_on_after_a_restart_of_the_broker(fleet: Fleet) -> None:
    fleet.queue_up(30)
    fleet.until_started(5)
    fleet.broker.restart()
    fleet.send(range(30, 45))
    fleet.until_ended(45)
    starts = fleet.records("starts")
    assert numbers(starts) == list(range(45))
    assert_within(RATE, starts)


def test_a_release_with_another_limit_finds_all_tasks(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    fleet.queue_up(100)
    fleet.until_started(5)
    before = fleet.records("starts")
    request.getfixturevalue("next_worker_container")
    released = len(fleet.records("starts"))
    for worker in fleet.workers:
        worker.kill("SIGTERM")
    fleet.until_ended(100)
    starts = fleet.records("starts")
    after = starts[released:]
    assert numbers(starts) == list(range(100))
    assert starts[-1].worker not in {worker.hostname() for worker in fleet.workers}
    assert_within(RATE, before)
    assert_within(NEXT_RATE, starts, workers=3)
    assert len(after) > 2 * RATE * (after[-1].at - after[0].at)
