"""Slots of tasks: never too many are held, and all are released however a task ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
import redis

from celery_throttle import Limiter, Throttled
from tests.apps import slots
from tests.workers import StartWorker, Worker

pytestmark = [pytest.mark.workers, pytest.mark.timeout(300)]

#: Seconds. A worker that stands still for as long counts as dead: a busy machine may do that to it.
LEASE = 60.0

#: Seconds; of tests in which a lease has to lapse.
SHORT_LEASE = 8.0

#: Seconds that a test waits for a state.
PATIENCE = 120.0


def send(url: str, task: str, calls: list[tuple[object, ...]]) -> None:
    slots.app.conf.update(broker_url=url)
    with slots.app.connection_for_write(url) as link:
        for arguments in calls:
            getattr(slots, task).apply_async(arguments, connection=link)


class Note(NamedTuple):
    kind: str
    number: int
    at: float
    worker: str


def notes(client: redis.Redis) -> list[Note]:
    lines: list[bytes] = client.lrange("slots-notes", 0, -1)  # type: ignore[assignment]  # not async
    found = [line.decode().split() for line in lines]
    return [Note(kind, int(number), float(at), name) for kind, number, at, name in found]


def numbers(client: redis.Redis, kind: str) -> list[int]:
    return sorted(note.number for note in notes(client) if note.kind == kind)


def wait_until(client: redis.Redis, kind: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(set(numbers(client, kind))) < count:
        assert time.monotonic() < deadline, notes(client)
        time.sleep(0.05)


def most_at_once(found: list[Note], killed: Mapping[str, float]) -> int:
    """How many ran at once; a run that was cut off ended when its worker was killed."""
    runs = Counter[tuple[int, str]]()
    changes = []
    for note in found:
        change = 1 if note.kind == "begin" else -1
        changes.append((note.at, change))
        runs[note.number, note.worker] += change
    for (_, worker), cut_off in runs.items():
        changes += [(killed[worker], -1) for _ in range(cut_off)]
    return max(accumulate(change for _, change in sorted(changes)))


def send_holding_first(
    client: redis.Redis, url: str, task: str, tasks: int, seconds: float, *, held: int
) -> None:
    """Send tasks of which the first end when all of these run, however slowly they begin."""
    send(url, task, [(number, None if number < held else seconds) for number in range(tasks)])
    deadline = time.monotonic() + PATIENCE
    while not {*range(held)} <= {*numbers(client, "begin")}:
        assert time.monotonic() < deadline, notes(client)
        time.sleep(0.05)
    client.set("slots-end", 1)


def slots_free(client: redis.Redis, name: str) -> bool:
    return client.zcard(f"{{throttle}}:entries:{name}") == 0


class Fleet:
    """Starts workers of one pool."""

    def __init__(self, start_worker: StartWorker, url: str, pool: str) -> None:
        self._start, self._url, self._pool = start_worker, url, pool

    def start(
        self, size: int, *, wait: bool = True, lease: float = LEASE, **settings: float
    ) -> Worker:
        """One more worker; solo has one thread, whatever the size."""
        env = {"THROTTLE_URL": self._url, "LEASE": f"{lease}"}
        env |= {name: f"{value}" for name, value in settings.items()}
        return self._start(
            "tests.apps.slots", self._url, pool=self._pool, concurrency=size, env=env, wait=wait
        )


@pytest.fixture
def fleet(start_worker: StartWorker, redis_url: str, pool: str) -> Fleet:
    return Fleet(start_worker, redis_url, pool)


def test_never_more_than_there_are(redis_url: str, client: Any, fleet: Fleet, pool: str) -> None:
    task, most, tasks, held = ("both", 2, 30, 1) if pool == "solo" else ("ten", 10, 100, 10)
    # Any worker may get the messages of all tasks that are held, and has a process for each.
    for worker in [fleet.start(held, wait=False) for _ in range(3)]:
        worker.wait_until_ready()
    send_holding_first(client, redis_url, task, tasks, 0.1, held=held)
    wait_until(client, "end", tasks)
    assert numbers(client, "begin") == list(range(tasks))
    assert most_at_once(notes(client), {}) == most
    deadline = time.monotonic() + PATIENCE
    while not slots_free(client, task):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.delete("slots-notes", "slots-end")


@pytest.mark.pools("prefork", "threads", "gevent", "eventlet")
def test_a_slot_beside_a_rate(redis_url: str, client: Any, fleet: Fleet) -> None:
    """Not with solo: one worker runs one task at once in any case."""
    fleet.start(5)
    send_holding_first(client, redis_url, "both", 40, 0.02, held=2)
    wait_until(client, "end", 40)
    assert most_at_once(notes(client), {}) == 2
    client.delete("slots-notes", "slots-end")


def test_tasks_that_waited_for_a_process_go_behind_those_in_line(
    redis_url: str, client: Any, fleet: Fleet
) -> None:
    fleet.start(1, LOOP_CALL_SECONDS=PATIENCE)
    send(redis_url, "one", [(number, 0.01) for number in range(30)])
    wait_until(client, "end", 30)
    assert [note.number for note in notes(client) if note.kind == "begin"] == list(range(30))
    client.delete("slots-notes")


@pytest.mark.thorough
def test_leases_go_on_while_a_task_keeps_its_worker_busy(
    redis_url: str, client: Any, fleet: Fleet
) -> None:
    worker = fleet.start(1, lease=SHORT_LEASE)
    send(redis_url, "one", [(0, None), (1, 0)])
    wait_until(client, "begin", 1)
    limiter = Limiter(redis_url)
    deadline = time.monotonic() + 1.3 * SHORT_LEASE
    while time.monotonic() < deadline:
        with pytest.raises(Throttled), limiter["one"].slot():
            raise AssertionError(worker.log())
        time.sleep(0.1)
    limiter.store.close()
    client.set("slots-end", 1)
    wait_until(client, "end", 2)
    assert numbers(client, "begin") == [0, 1]
    client.delete("slots-notes", "slots-end")


#: How tasks can end. Only prefork outlives the end of a task's process, and Celery has time limits
#: only with prefork and gevent.
ENDS = {"prefork": ["time", "die"], "gevent": ["time"]}


def test_given_back_however_a_task_ends(
    redis_url: str, client: Any, fleet: Fleet, pool: str
) -> None:
    worker = fleet.start(2)
    hows = ["fail", "retry", *ENDS.get(pool, ()), "return"]
    send(redis_url, "ends", list(enumerate(hows)))
    wait_until(client, "begin", len(hows))
    begun = Counter([*range(len(hows)), hows.index("retry")])
    # Celery runs a task once more whose process has ended before the worker reads of its begin.
    again = Counter(number for number, how in enumerate(hows) if how == "die")

    def have_begun() -> bool:
        found = Counter(numbers(client, "begin"))
        return begun <= found <= begun + again

    deadline = time.monotonic() + PATIENCE
    while not have_begun() or not slots_free(client, "one"):
        assert time.monotonic() < deadline, worker.log()
        time.sleep(0.05)
    client.delete("slots-notes")


@pytest.mark.thorough
def test_killed_workers_slots_are_back_within_the_lease(
    redis_url: str, client: Any, fleet: Fleet, pool: str
) -> None:
    task, most, tasks = ("both_late", 2, 30) if pool == "solo" else ("ten_late", 10, 120)
    killed: dict[str, float] = {}
    workers = [fleet.start(6, wait=False, lease=SHORT_LEASE) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    send(redis_url, task, [(number, 0.1) for number in range(tasks)])
    # Celery's Redis transport loses what it is handing over, see test_crash.py.
    deadline = time.monotonic() + PATIENCE
    while client.exists("slots") or client.exists("unacked"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for victim in workers:
        running = len(notes(client))
        wait_until(client, "begin", min(tasks, running // 2 + most + 2))
        victim.kill()
        killed[victim.hostname] = time.time()
        victim.wait()
        fleet.start(6, wait=False, lease=SHORT_LEASE)
    wait_until(client, "end", tasks)
    found, ended = notes(client), set(numbers(client, "end"))
    client.delete("slots-notes")
    assert most_at_once(found, killed) <= most
    assert ended == set(range(tasks))
