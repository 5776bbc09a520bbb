"""Workers that are told to stop: the next worker gets the waiting tasks at once; none is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import celery
import psutil
import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.worker.hooks.prefork import confirm_before_flush
from tests.apps import stops
from tests.servers.server import wait_until
from tests.workers import QUICK, StartWorker, Worker

pytestmark = pytest.mark.workers

#: Leases last 300 s here: whoever waits for one to run out waits in vain.
SECONDS = 20

FOREVER = 60.0


class Note(NamedTuple):
    at: float
    number: int


class Stage:
    """Tasks, the worker that is told to stop, and the next one."""

    def __init__(self, url: str, pool: str, start_worker: StartWorker) -> None:
        self._url, self.pool, self._start = url, pool, start_worker
        self.client = redis.Redis.from_url(url)
        self.limiter = Limiter(url, stops.LIMITS)
        stops.app.conf.update(broker_url=url)

    def worker(
        self, hostname: str = "", *, size: int = 6, options: Sequence[str] = QUICK, **env: str
    ) -> Worker:
        """Start one; solo has one thread, whatever the size."""
        return self._start(
            "tests.apps.stops",
            self._url,
            pool=self.pool,
            concurrency=size,
            hostname=hostname,
            options=options,
            env={"THROTTLE_URL": self._url, **env},
        )

    def send(self, task: Any, numbers: range, seconds: float = 0.0) -> None:
        for number in numbers:
            task.apply_async((number, seconds), task_id=str(number))

    def line_up(self, task: Any, limit: str, numbers: range, seconds: float = 0.0) -> list[int]:
        """Let tasks wait in a line, and tell their order in it; the limit is to be opened."""
        self.limiter[limit].pause(3600)
        self.send(task, numbers, seconds)
        until(lambda: self.waiting() == len(numbers), "all tasks wait in their line")
        return self.line()

    def line(self) -> list[int]:
        """The tasks that wait, in the order of their line."""
        lines: Any = self.client.keys("{throttle}:line:*")
        ids: Any = [each for line in lines for each in self.client.zrange(line, 0, -1)]
        return [int(each) for each in ids]

    def end(self, *numbers: int) -> None:
        """Let tasks end that would run forever."""
        for number in numbers:
            self.client.set(f"stops-end:{number}", 1, ex=60)

    def open(self, *limits: str) -> None:
        for limit in limits:
            self.limiter[limit].reset()

    def waiting(self) -> int:
        return int(self.client.hlen("{throttle}:messages:redis/0/stops"))

    def notes(self, kind: str) -> list[Note]:
        rows: Any = self.client.lrange("stops-notes", 0, -1)
        found = [row.decode().split() for row in rows]
        notes = [Note(float(at), int(number)) for each, number, at in found if each == kind]
        return sorted(notes)

    def begun(self) -> list[int]:
        return [note.number for note in self.notes("begin")]

    def ended(self) -> list[int]:
        return [note.number for note in self.notes("end")]

    def held(self, limit: str) -> int:
        """How many slots are taken."""
        return int(self.client.zcard(f"{{throttle}}:entries:{limit}"))

    def nothing_is_held(self) -> bool:
        """Whether no worker holds a task or a slot, and none waits."""
        kinds = ("claims", "entries", "messages", "line", "lines", "due", "waiting", "workers")
        return not any(self.client.keys(f"{{throttle}}:{kind}*") for kind in kinds)

    def close(self) -> None:
        self.limiter.store.close()
        self.client.delete("stops-notes")
        self.client.close()


@pytest.fixture
def stage(redis_url: str, pool: str, start_worker: StartWorker) -> Iterator[Stage]:
    stage = Stage(redis_url, pool, start_worker)
    yield stage
    stage.close()


def until(true: Callable[[], Any], what: str) -> None:
    wait_until(true, what, SECONDS)


@pytest.mark.thorough
def test_after_a_warm_shutdown_the_next_worker_goes_on_at_once(stage: Stage) -> None:
    told: list[float] = []

    def stop(worker: Worker) -> None:
        told.append(time.time())
        worker.terminate()

    stopped(stage, stop, "20/s")
    begun_by_the_next = [note.at for note in stage.notes("begin") if note.at > told[0] + 0.5]
    assert len(begun_by_the_next) > 20


@pytest.mark.pools("prefork")
def test_a_task_in_the_pipe_of_a_process_runs_once_and_does_not_hold_up_the_end(
    stage: Stage,
) -> None:
    """Celery forgets it, the process runs it, and waits for 30 s until its result is read."""
    worker = stage.worker(size=1)
    stage.send(stops.api, range(1))
    until(lambda: stage.ended() == [0], "the process is there")
    inspect = stops.app.control.inspect([worker.hostname], timeout=10)
    # A process that has not yet sent its result is busy, and gets no task.
    until(lambda: [*(inspect.active() or {}).values()] == [[]], "the process is free")
    (stats,) = (inspect.stats() or {}).values()
    (pid,) = stats["pool"]["processes"]  # the worker may have other children
    process = psutil.Process(pid)
    process.suspend()
    stage.send(stops.api, range(1, 2))
    for _ in range(2):  # after the second answer of its loop, what it handed over is in the pipe
        until(lambda: [*(inspect.reserved() or {}).values()] not in ([], [[]]), "it is handed over")
    worker.terminate()
    until(lambda: "Warm shutdown" in worker.log(), "the worker is told to stop")
    with suppress(subprocess.TimeoutExpired):  # its loop may sleep for a second
        worker.wait(2)
    process.resume()
    assert worker.wait(15) == 0
    assert stage.ended() == [0, 1]
    until(stage.nothing_is_held, "all is given back")


@pytest.mark.thorough
@pytest.mark.pools("threads", "gevent")
def test_a_warm_shutdown_by_command(stage: Stage) -> None:
    """With solo and prefork it comes as with threads, with eventlet as with gevent."""
    stopped(
        stage,
        lambda worker: stops.app.control.shutdown(destination=[worker.hostname]),
        "20/s",
    )


def stopped(stage: Stage, stop: Callable[[Worker], Any], rate: str) -> None:
    """Stop a worker while a line moves, that moves for 5 s; the next has to go on."""
    first = stage.worker()
    tasks = range(100)
    order = stage.line_up(stops.api, "api", tasks)
    stage.limiter["api"].define(rate)
    stage.open("api")
    until(lambda: len(stage.begun()) > 2, "the line moves")
    stop(first)
    assert first.wait() == 0
    assert stage.line() == [number for number in order if number not in stage.begun()]
    stage.limiter["api"].define("1000/s")
    stage.worker(first.hostname)
    until(lambda: len(stage.ended()) >= len(tasks), "all tasks ran")
    assert Counter(stage.begun()) == Counter(tasks)
    until(stage.nothing_is_held, "all is given back")


@pytest.mark.thorough
def test_a_cold_shutdown_does_to_running_tasks_what_it_does_to_those_without_limits(
    stage: Stage, pool: str
) -> None:
    """With prefork what is acknowledged late runs again, with the others it does not.

    Nor does it without limits: threads run to their end, solo takes a task that is cut off for
    failed, gevent and eventlet for done. In these three it is no certain thing which are. With
    threads, Celery's handler of the signal fails. Where that ends the loop at once, no message goes
    back; where a timer catches it, those of all tasks that are acknowledged late do.
    """
    if pool == "solo":  # one task at a time
        cut_off(stage, {101: stops.plain_late})
        cut_off(stage, {1: stops.late})
    else:
        both = {100: stops.plain, 101: stops.plain_late, 0: stops.early, 1: stops.late}
        cut_off(stage, {**both, 2: stops.slot_late})
    begun, ended = Counter(stage.begun()), Counter(stage.ended())
    found = {number: (begun[number], ended[number]) for number in (100, 101, 0, 1, 2)}
    if pool == "prefork":
        assert found == {100: (1, 0), 101: (2, 1), 0: (1, 0), 1: (2, 1), 2: (2, 1)}
    elif pool == "threads":
        assert found[100] == found[0] == (1, 1)
        assert found[101] == found[1] == found[2]
        assert found[101] in {(1, 1), (2, 2)}
    else:
        assert {times for times, _ in found.values() if times} == {1}


@pytest.mark.thorough
@pytest.mark.pools("prefork", "threads")
def test_a_soft_shutdown_lets_tasks_end_for_some_time(stage: Stage) -> None:
    """Not with the others: Celery waits in a signal handler, where nothing else runs."""
    cut_off(stage, {1: stops.late, 2: stops.slot_late, 3: stops.late}, soft={1, 2})
    begun, ended = Counter(stage.begun()), Counter(stage.ended())
    assert (begun[1], ended[1]) == (begun[2], ended[2]) == (1, 1)
    assert ended[3] == 1


def wait_for_cold_shutdown(worker: Worker, pool: str, seconds: float) -> None:
    """Wait until a worker has cut off its tasks; without prefork it may wait for their ends."""
    if pool == "prefork":
        worker.wait()
    with suppress(subprocess.TimeoutExpired):
        worker.wait(seconds)


def cut_off(stage: Stage, running: Mapping[int, Any], soft: Collection[int] = ()) -> None:
    """Tell a worker to stop at once while tasks run and others wait; the next has to go on."""
    if stage.pool in ("solo", "threads") and celery.VERSION < (5, 7):
        pytest.skip("Celery ignores SIGQUIT if its pool cannot terminate tasks")
    first = stage.worker(SOFT="2" if soft else "0")
    waiting = range(1000 * min(running) + 200, 1000 * min(running) + 210)
    order = stage.line_up(stops.api, "api", waiting)
    for limit in ("open", "two"):
        stage.limiter[limit].pause(3600)
    for number, task in running.items():
        stage.send(task, range(number, number + 1), FOREVER)
    limited = len(waiting) + sum(number < 100 for number in running)
    until(lambda: stage.waiting() == limited, "those with limits come out of lines")
    stage.open("open", "two")
    until(lambda: set(running) <= set(stage.begun()), "the tasks run")
    if stage.pool == "prefork":  # it only cuts off what it knows to run
        inspect = stops.app.control.inspect([first.hostname], timeout=10)
        until(
            lambda: sum(map(len, (inspect.active() or {}).values())) == len(running),
            "the worker knows that they run",
        )
    first.quit()
    stage.end(*soft)
    wait_for_cold_shutdown(first, stage.pool, 3 if soft else 1)
    stage.end(*running)
    first.wait()
    assert [number for number in stage.line() if number in waiting] == order
    stage.open("api")
    stage.worker(first.hostname)
    until(lambda: set(waiting) <= set(stage.ended()), "what waited ran")
    until(stage.nothing_is_held, "all is given back")


def test_pipes_may_have_high_numbers() -> None:
    """As in a worker with some hundred processes, which opens that many files."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 2000)
    read: list[int] = []

    def handle(fd: int) -> None:
        read.append(fd)
        job._accepted = True

    process = SimpleNamespace(outqR_fd=high, _is_alive=lambda: True)
    job = SimpleNamespace(_write_to=process, _accepted=False)
    billiards = SimpleNamespace(_cache={1: job}, _active_writers=(), handle_result_event=handle)
    pool = SimpleNamespace(_pool=billiards, flush=lambda: None)
    hub = SimpleNamespace(readers={})
    os.write(writer, b"confirmed")
    try:
        confirm_before_flush(SimpleNamespace(pool=pool, hub=hub))
        pool.flush()
    finally:
        for fd in (reader, writer, high):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read == [high]
