"""``make soak MINUTES=60``: a mixed load for as long as asked; a worker is killed each minute.

Three limits (one with 200 keys, one with slots), fan-outs, retries, failures and revokes. Meanwhile
limits are changed and paused, metrics are scraped and pages are opened. At the end each task is
accounted for, nothing was over its limit, no key of a task is left, memory is flat, and each kind
of warning in the logs is one that is listed here, with its reason.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from celery_throttle.observe.metrics.prometheus import start_server
from celery_throttle.web.server import make_server, port_of
from tests.faults.verdict import Faults, Verdict, judge, table
from tests.key_catalogue import Expiry
from tests.redis_keys import assert_catalogued
from tests.servers.rabbitmq import RabbitMQ, rabbitmq_command
from tests.servers.server import Server, assert_nothing_left_behind, free_port, valkey_command

if TYPE_CHECKING:
    from tests.faults.bench import Bench

TENANTS = 200
#: What the server may need more for the records of some hours.
RECORDS_MB = 5
LEASE = 6.0
#: Limits of "api", one after the other; the highest rate is the one that starts are judged by.
RATES, HIGHEST = ("80/s", "120/s", "100/s"), 120

#: Kinds of lines with a warning or an error in the logs of workers, and why they are right.
EXPECTED = {
    r"Worker .+ is gone: its tasks go back to their lines": "one was killed",
    r"Task .+failing\[.+\] raised unexpected: ValueError": "what the task is for",
    r"Failed to mark task revoked-\d+ as revoked": "Celery's own; there is no result backend",
    r"appendonly is no, so waiting tasks are lost": "the server keeps nothing on disk",
}

_LINE = re.compile(r"^\[[^]]+: (WARNING|ERROR|CRITICAL)/[^]]+\] (.*)$", re.MULTILINE)


@dataclass
class Soak:
    """The load, what was done to it, and what was seen meanwhile."""

    bench: Bench
    throttle: Any
    store: Server
    pages: Sequence[str]
    dice: random.Random
    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    tenants: dict[int, int] = field(default_factory=dict)  #: by the numbers of their tasks
    revoked: set[int] = field(default_factory=set)
    killed: dict[str, float] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    drained: dict[str, float] = field(default_factory=dict)  #: memory when nothing waits any more
    next_number: int = 0

    def numbers(self, count: int) -> range:
        """So many new numbers of tasks."""
        self.next_number += count
        return range(self.next_number - count, self.next_number)

    def send(self, task: str, count: int, *args: Any) -> None:
        numbers = self.numbers(count)
        self.bench.send(task, numbers, *args)
        self.sent[task] += numbers

    def second(self, number: int) -> None:
        """What one second of the load is; the waiting tasks of one tenant become many at times."""
        self.send("late", 40)
        self.send("failing", 4)
        self.send("slotted", 10, 0.1)
        self.send("plain", 10)
        for _ in range(30):
            # "mail" is paused 2 s of 25: so a tenant gets 4.6 a second, and this one needs 3.1.
            tenant = 0 if self.dice.random() < 0.1 else self.dice.randrange(TENANTS)
            self.tenants[self.next_number] = tenant
            self.send("mailed", 1, f"tenant-{tenant}")
        for every, do in (
            (7, self.revoke),
            (15, lambda: self.throttle["api"].define(self.dice.choice(RATES))),
            (20, self.fan_out),
            (25, lambda: self.throttle["mail"].pause(2)),
            (10, self.look),
            (60, self.kill),
        ):
            if number % every == every - 1:
                do()

    def revoke(self) -> None:
        """Revoke a task that has just been sent; it may have started."""
        [number] = self.numbers(1)
        self.bench.send("late", [number], task_id=f"revoked-{number}")
        self.throttle.app.control.revoke(f"revoked-{number}")
        self.revoked.add(number)

    def fan_out(self) -> None:
        task, numbers = self.throttle.app.tasks["tests.faults.app.late"], self.numbers(200)
        self.throttle.fan_out(task.s(number) for number in numbers)
        self.sent["late"] += numbers

    def look(self) -> None:
        """Scrape, open pages, and note the memory of the server and of the worker that stays."""
        for url in self.pages:
            assert httpx.get(url, timeout=30).status_code == 200, url
        for name, megabytes in self.measure_memory().items():
            self.memory[name].append(megabytes)

    def measure_memory(self) -> dict[str, float]:
        """Megabytes of the server and of the worker that stays."""
        process = psutil.Process(self.bench.workers[0].pid)
        with self.store.client() as client:
            server = client.info("memory")["used_memory"] / 1e6
        return {"worker": process.memory_info().rss / 1e6, "server": server}

    def kill(self) -> None:
        worker = self.dice.choice(self.bench.workers[1:])
        worker.kill()
        self.killed[worker.hostname] = time.time()
        self.logs.append(worker.log())
        self.bench.replace(worker)

    def all_sent(self) -> list[int]:
        return [number for numbers in self.sent.values() for number in numbers]

    def drain(self) -> None:
        """Until every task has started, or may have been revoked; then end the workers."""
        self.throttle["mail"].resume()
        expected = set(self.all_sent())
        self.bench.until(
            lambda: expected <= {row["number"] for row in self.bench.rows("starts")},
            "a start of each task",
            600,
        )
        failing = set(self.sent["failing"])
        self.bench.until(
            lambda: failing <= {row["number"] for row in self.bench.rows("retried")}, "retries", 120
        )
        self.drained = self.measure_memory()
        with self.store.client() as client:
            pattern = f"{self.throttle.keys.prefix}:claims:*"
            self.bench.until(
                lambda: not list(client.scan_iter(pattern)),
                "the end of each claim, of the worker killed last too",
                10 * LEASE,
            )
        for worker in self.bench.workers:
            worker.terminate()
        for worker in self.bench.workers:
            assert worker.wait() == 0, worker.log()[-3000:]
            self.logs.append(worker.log())


def verdicts(soak: Soak) -> list[Verdict]:
    """One line for each kind of task; keys are judged one by one, and the worst is counted."""
    faults = Faults(soak.killed, [])
    by_task = defaultdict(list)
    for row in soak.bench.rows("starts"):
        by_task[row["task"].rpartition(".")[2]].append(row)
    api = by_task["late"] + by_task["failing"]
    sent = soak.sent["late"] + soak.sent["failing"]
    sent += _started(soak.revoked, api)
    found = [judge("api", sent, api, faults, rate=HIGHEST, lease=LEASE)]
    found += (
        judge(task, soak.sent[task], by_task[task], faults, rate=1e9, lease=LEASE)
        for task in ("mailed", "slotted", "plain")
    )
    tenant_of, by_tenant = soak.tenants, defaultdict(list)
    for row in by_task["mailed"]:
        by_tenant[tenant_of[row["number"]]].append(row)
    over = [judge("", [], rows, faults, rate=5, burst=2).over for rows in by_tenant.values()]
    return [replace(one, over=max(over)) if one.fault == "mailed" else one for one in found]


def _started(numbers: Iterable[int], rows: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted(set(numbers) & {row["number"] for row in rows})


def most_at_once(soak: Soak) -> int:
    """How many tasks with a slot ran at once; those of a killed worker ended with it."""
    ends = {row["number"]: row["at"] for row in soak.bench.rows("ends")}
    events, later = [], set()
    for row in reversed(soak.bench.starts("slotted")):
        number, end = row["number"], soak.killed.get(row["worker"], row["at"])
        if number in ends and number not in later:
            end = ends[number]
        later.add(number)
        events += [(row["at"], 1), (max(row["at"], end), -1)]
    running = most = 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    return most


def early(samples: Sequence[float]) -> float:
    """The median of the second quarter of the samples: the first warms up."""
    quarter = max(1, len(samples) // 4)
    return median(samples[quarter : 2 * quarter] or samples)


def kinds_of_warnings(logs: Iterable[str]) -> Counter[str]:
    """Count the lines with a warning or an error: by the pattern of a kind, or as they are."""
    found: Counter[str] = Counter()
    for log in logs:
        for _, text in _LINE.findall(log):
            found[next((kind for kind in EXPECTED if re.search(kind, text)), text)] += 1
    return found


def check(soak: Soak) -> list[str]:
    """Print what was found; return what is wrong."""
    found = verdicts(soak)
    print(table(found))
    wrong = [f"{one}" for one in found if one.lost or one.unexplained or one.over]
    slots = most_at_once(soak)
    print(f"slots in use at once: {slots} of 4")
    wrong += [f"{slots} slots of 4"] if slots > 4 else []
    for name, samples in soak.memory.items():
        before, most, now = early(samples), max(samples), soak.drained[name]
        print(f"memory of the {name}: {before:.0f} MB early, {most:.0f} at most, {now:.0f} drained")
        # The server keeps records of each minute for the reports: a few megabytes.
        if now > 1.1 * before and now - before > RECORDS_MB:
            wrong.append(f"memory of the {name} grew from {before:.0f} to {now:.0f} MB")
    for kind, count in sorted(kinds_of_warnings(soak.logs).items()):
        print(f"{count:6} warnings: {kind} ({EXPECTED.get(kind, 'NOT EXPECTED')})")
        wrong += [f"a warning that is not expected: {kind}"] if kind not in EXPECTED else []
    with soak.store.client() as client:
        assert_nothing_left_behind(client)
        kinds = assert_catalogued(client)
        left = [key for key, kind in kinds.items() if kind.expiry is Expiry.WITH_LAST_TASK]
    return wrong + [f"left in the server: {key}" for key in left]


@contextmanager
def prepared(seed: int) -> Iterator[Soak]:
    """Servers, three workers, a page and metrics."""
    command = rabbitmq_command()
    if command is None:
        sys.exit("make soak needs rabbitmq-server: kombu loses tasks of killed workers in Redis")
    with tempfile.TemporaryDirectory() as folder:
        directories = [Path(folder, name) for name in ("store", "records", "broker")]
        for directory in directories:
            directory.mkdir()
        store, records = (Server(valkey_command(), directory) for directory in directories[:2])
        broker = RabbitMQ(command, directories[2])
        os.environ.update(THROTTLE_URL=store.url, RECORDS_URL=records.url)
        os.environ["CELERY_BROKER_URL"] = broker.url
        from tests.faults import app as faults  # noqa: PLC0415  # it reads the environment
        from tests.faults.bench import Bench  # noqa: PLC0415  # so does this

        conf = {"throttle_lease": LEASE}
        web = make_server(faults.throttle, "127.0.0.1", 0, "")
        try:
            made = Bench(broker.url, store.url, records=records.url, conf=conf, loglevel="WARNING")
            with made as bench:
                faults.app.conf.task_queues = [faults.queue(bench.queue, "classic")]
                faults.app.conf.task_default_queue = bench.queue
                port = free_port()
                start_server(faults.throttle, port, "127.0.0.1")
                threading.Thread(target=web.run, daemon=True).start()
                page = f"http://127.0.0.1:{port_of(web)}"
                paths = ("/", "/limits/mail", "/limits/api", "/workers", "/history", "/fan-outs")
                pages = [f"http://127.0.0.1:{port}/metrics", *(page + path for path in paths)]
                bench.start_workers(3)
                yield Soak(bench, faults.throttle, store, pages, random.Random(seed))
        finally:
            web.close()
            broker.close()
            store.stop()
            records.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with prepared(arguments.seed) as soak:
        began = time.monotonic()
        for number in range(round(60 * arguments.minutes)):
            soak.second(number)
            time.sleep(max(0.0, began + number + 1 - time.monotonic()))
            if number % 60 == 59:
                print(f"minute {number // 60 + 1}: {soak.next_number:,} tasks sent", flush=True)
        soak.drain()
        wrong = check(soak)
    for text in wrong:
        print("WRONG:", text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
