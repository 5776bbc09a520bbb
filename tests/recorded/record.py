"""Records all keys that a version of this package leaves on a server, and the runs to expect.

``tests/vectors/before-packages.json`` was recorded with commit 0d12d94, the last one before the
modules moved into packages, with Celery 5.7 and Valkey 9.1. To record it again, copy this folder to
a checkout of that commit, and run there::

    git worktree add --detach ../before 0d12d94
    cp -r tests/recorded ../before/tests/
    sed -i s/tests.servers.server/tests.servers/ ../before/tests/recorded/record.py
    cd ../before && python -m tests.recorded.record before-packages.json

It uses what both versions have: the public API, and the servers and workers of the tests.

The file is JSON: ``keys``, as :func:`tests.stored.restore_keys` reads them; ``at``, the server's
time at the end, in microseconds; ``peeks``, the decisions at that time; ``runs``, the run that each
task must record, by the stage of the replay in which it may run; ``expired``, tasks that must not
run; ``fan_outs``, the progress of each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from base64 import b64encode
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery_throttle import Feedback, Limiter
from celery_throttle.testing import ManualClock
from tests.recorded.app import LIMITS, QUEUES, RUNS, make_app
from tests.servers.server import Server, valkey_command, wait_until
from tests.workers import Worker

#: Expiries (seconds) of tasks: long past, and later than any replay.
SOON, NEVER = 1, 100 * 366 * 86_400


class Recorder:
    """Brings a server into the state that is recorded.

    Attributes:
        runs: by stage, and by id of a task, what its run in the replay must record.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client: Any = server.client()
        self.app = make_app(server.url)
        self.throttle = self.app.throttle
        self.runs: dict[str, dict[str, dict[str, Any]]] = {}
        self.expired: list[str] = []
        self._count = 0

    def expect(self, stage: str, task_id: str, name: str, *args: Any, **what: Any) -> None:
        run = {"id": task_id, "name": name, "args": list(args)}
        usual: dict[str, Any] = {
            "kwargs": {},
            "trace": None,
            "retries": 0,
            "priority": 0,
            "queue": QUEUES[0],
        }
        self.runs.setdefault(stage, {})[task_id] = {**run, **usual, **what}

    def send(
        self,
        stage: str,
        name: str,
        kwargs: dict[str, Any] | None = None,
        *,
        app: Any = None,
        trace: str | None = None,
        retries: int = 0,
        **options: Any,
    ) -> str:
        """Send a task, and expect its run in a stage of the replay; none if that is empty."""
        self._count += 1
        task_id = f"{name}-{self._count}"
        headers = {"trace": trace} if trace else None
        (app or self.app).tasks[name].apply_async(
            (self._count,), kwargs, task_id=task_id, headers=headers, **options
        )
        if stage:
            self.expect(
                stage,
                task_id,
                name,
                self._count,
                kwargs=kwargs or {},
                trace=trace,
                retries=retries,
                priority=options.get("priority", 0),
                queue=options.get("queue", QUEUES[0]),
            )
        return task_id

    def ran(self) -> list[str]:
        return [json.loads(row)["id"] for row in self.client.lrange(RUNS, 0, -1)]

    def until_ran(self, *ids: str) -> None:
        wait_until(lambda: set(ids) <= set(self.ran()), f"runs of {', '.join(ids)}")

    def until_waiting(self, *ids: str) -> None:
        wait_until(lambda: set(ids) <= self.waiting(), f"{', '.join(ids)} wait")

    def waiting(self) -> set[str]:
        names = self.client.keys("*:messages:*")
        return {task_id.decode() for name in names for task_id in self.client.hkeys(name)}

    def worker(self, *queues: str, **env: str) -> Worker:
        return Worker(
            "tests.recorded.app",
            self.server.url,
            concurrency=10,
            queues=queues,
            env={"RECORDING": "1", **env},
        )

    def record(self) -> dict[str, Any]:
        self.define()
        self.quarantine()
        with self.worker(*QUEUES[:2]) as worker:
            self.finish()
            self.wait_in_lines()
            self.leave_lines()
            self.claim()
            worker.kill()
            worker.wait()
        self.send("open", "quick")
        self.send("open", "quick", priority=6, trace="in the broker")
        self.use()
        return self.read()

    def define(self) -> None:
        self.throttle.register()
        self.throttle.define("stripe", "50/s burst 9")
        self.throttle.define("tenant", "20/s burst 7 max-keys 5", key="vip")
        self.throttle.define("tenant", key="gold", weight=3)
        for name in ("held", "inner", "fresh", "few"):
            self.throttle[name].pause(None)
        self.throttle["stripe", "eu"].pause(None)
        self.throttle["stripe", "us"].pause(3600)

    def quarantine(self) -> None:
        """Lets a worker take tasks out of a line that it has no code for."""
        third = QUEUES[2]
        with self.worker(third) as worker:
            ids = [self.send("open", "fresh", queue=third) for _ in range(3)]
            self.until_waiting(*ids)
            worker.terminate()
            worker.wait()
        with self.worker(third, WITHOUT_FRESH="1") as worker:
            self.throttle["fresh"].resume()
            aside = "{throttle}:aside"
            wait_until(lambda: self.client.hlen(aside) == len(ids), "tasks in quarantine")
            worker.terminate()
            worker.wait()

    def finish(self) -> None:
        """Lets tasks run, also one whose next run has to wait."""
        tasks = self.app.tasks
        ids = [self.send("", "quick") for _ in range(3)]
        self.until_ran(*ids)
        signatures = [tasks["quick"].s(n).set(task_id=f"finished-{n}") for n in range(4)]
        finished = self.throttle.fan_out(signatures, "finished", keep=NEVER / 10)
        assert finished.wait(timeout=30).done == 4
        self.until_waiting(self.send("again", "again", retries=1))

    def wait_in_lines(self) -> None:
        ids = [self.send("held", "work") for _ in range(4)]
        ids += [self.send("held", "work", priority=priority) for priority in (9, 3)]
        ids.append(self.send("held", "work", {"text": "ünï"}, trace="t-1"))
        ids.append(self.send("held", "work", expires=NEVER))
        ids.append(self.send("held", "work", queue=QUEUES[1]))
        for who in ("gold", "silver"):
            ids += [self.send("held", "share", {"who": who}) for _ in range(6)]
        ids.append(self.send("held", "share", {"who": "vip"}, queue=QUEUES[1]))
        then = self.app.tasks["plain"].s().set(task_id="link-1")
        ids.append(self.send("held", "work", link=then))
        number = self.runs["held"][ids[-1]]["args"][0]
        self.expect("held", "link-1", "plain", number)
        self.until_waiting(*ids)
        self.expired = [self.send("", "work", expires=SOON), self.send("", "work", expires=SOON)]
        self.until_waiting(*self.expired)

        lines = make_app(self.server.url, throttle_publish="line")
        line = [self.send("held", "work", app=lines, priority=3, trace="line") for _ in range(3)]
        assert set(line) <= self.waiting(), "these pass the broker by"

        few = [self.send("few", "few") for _ in range(3)]
        self.until_waiting(*few)
        meet = self.send("inner", "meet", trace="in its body")
        self.until_waiting(meet)

    def leave_lines(self) -> None:
        """Sends fan-outs: one is paused, one is cancelled, and a part of one runs."""
        tasks = self.app.tasks
        self.throttle.fan_out([], "paused").pause()
        signatures = [tasks["quick"].s(n).set(task_id=f"paused-{n}") for n in range(5)]
        self.throttle.fan_out(signatures, "paused")
        for number in range(5):
            self.expect("paused", f"paused-{number}", "quick", number)

        signatures = [tasks["work"].s(n).set(task_id=f"cancelled-{n}") for n in range(4)]
        cancelled = self.throttle.fan_out(signatures, "cancelled", keep=NEVER / 10)
        assert cancelled.cancel() == 4

        signatures = []
        for number in range(12):
            kwargs: dict[str, Any] = {"held": True} if number in (5, 6) else {}
            kwargs |= {"fail": True} if number in (3, 8) else {}
            signatures.append(
                tasks["night"].s(number, **kwargs).set(task_id=f"night-{number}", priority=3)
            )
            if number >= 5:
                self.expect("open", f"night-{number}", "night", number, kwargs=kwargs, priority=3)
        nightly = self.throttle.fan_out(signatures, "nightly", keep=NEVER / 10)
        wait_until(lambda: nightly.progress().running == 2, "two of them run")
        self.until_ran("night-5", "night-6")
        wait_until(lambda: nightly.progress().ended == 5, "five of them ended")

    def claim(self) -> None:
        """Lets tasks run that do not end: two from the broker, and three out of a line."""
        started = [self.send("open", "slot") for _ in range(2)]
        self.until_ran(*started)
        self.until_waiting(*(self.send("open", "slot") for _ in range(4)))
        self.throttle["pace"].pause(None)
        claimed = [self.send("open", "hold", trace="claimed") for _ in range(3)]
        self.until_waiting(*claimed)
        self.throttle["pace"].resume()
        self.until_ran(*claimed)
        (claims,) = self.client.keys("*:claims:*")
        wait_until(lambda: self.client.hlen(claims) == 5, "five claims")  # two of the fan-out

    def use(self) -> None:
        """Uses limits by calls."""
        throttle = self.throttle
        for name in ("gcra", "token", "leaky", "first", "log", "sliding", "dropped"):
            assert throttle[name].acquire(90)
        assert throttle["outflow"].acquire(20)
        assert throttle["fixed"].acquire(33.5)
        assert throttle["calendar"].acquire(100)
        assert throttle["stripe"].acquire(4)
        assert throttle["tenant", "vip"].acquire(5)
        assert throttle["keyed", "a"].acquire(9)
        assert throttle["keyed", "b"].acquire(1)
        assert throttle["adaptive"].acquire(1)
        throttle.learn(["adaptive"], Feedback(refused=True, stop=0.5))
        throttle.learn(["gcra"], Feedback(left=7))
        throttle["several"].slot(lease=3600).__enter__()  # never given back

    def peek(self, at: int) -> list[Any]:
        limiter = Limiter(self.server.url, LIMITS, clock=ManualClock(at))
        names: list[Any] = [name for name in LIMITS if name not in ("tenant", "keyed")]
        keyed = [("keyed", "a"), ("keyed", "b"), ("tenant", "vip"), ("tenant", "gold")]
        names += [*keyed, ("stripe", "eu"), ("stripe", "us"), ("pass", "again")]
        return [[name, list(limiter.peek([name]))] for name in names]

    def read(self) -> dict[str, Any]:
        seconds, micros = self.client.time()
        at = seconds * 1_000_000 + micros
        names = ("finished", "paused", "cancelled", "nightly")
        fan_outs = {name: self.throttle.fan_out_named(name).progress() for name in names}
        return {
            "at": at,
            "runs": self.runs,
            "expired": self.expired,
            "peeks": self.peek(at),
            "fan_outs": {name: {**asdict(found), "rate": None} for name, found in fan_outs.items()},
            "keys": {name.decode(): self.key(name) for name in sorted(self.client.keys())},
        }

    def key(self, name: bytes) -> dict[str, Any]:
        kind = self.client.type(name).decode()
        value: Any
        if kind == "string":
            value = text(without_traceback(name, self.client.get(name)))
        elif kind == "hash":
            value = {text(field): text(it) for field, it in self.client.hgetall(name).items()}
        elif kind == "zset":
            found = self.client.zrange(name, 0, -1, withscores=True)
            value = {text(member): score for member, score in found}
        elif kind == "set":
            value = sorted(map(text, self.client.smembers(name)))
        else:
            assert kind == "list", f"{name!r} is a {kind}"
            value = list(map(text, self.client.lrange(name, 0, -1)))
        left = self.client.pttl(name)
        return {"type": kind, "value": value, **({} if left < 0 else {"expires_ms": left})}


def without_traceback(name: bytes, value: bytes) -> bytes:
    """Leaves the paths of the recording machine out of a task's result."""
    if not name.startswith(b"celery-task-meta-"):
        return value
    return json.dumps({**json.loads(value), "traceback": None}).encode()


def text(data: bytes) -> str:
    return b64encode(data).decode()


def main(path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="recorded-") as directory:
        server = Server(valkey_command(), Path(directory))
        try:
            recorded = Recorder(server).record()
        finally:
            server.stop()
    del recorded["keys"][RUNS]  # those of the recording
    Path(path).write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
