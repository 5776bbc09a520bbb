"""Commands of an operator while 100,000 tasks of 1,000 keys wait, and two workers run tasks.

Each task needs a limit of 50/s and one of its key. Phases alternate: in one, the commands ``ls``,
``show`` and ``why`` run one after the other; in the other, as many times their help, which starts
the same process and asks no server. What a command takes beyond its help is its answer. Meanwhile
plain tasks are sent to the same queue; their latency runs from just before a message is put into
the broker to the first line of the task's body.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.probes import Probes
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import QUEUE, ROOT, Stage, wait_until

RATE, KEYS = 50, 1_000

#: Seconds within which a command must answer, beyond its start.
ANSWER = 0.3


def run(options: Options) -> Result:
    """Fill the lines, then run the phases."""
    waiting, phases = options.pick(100_000, 10_000), options.pick(10, 2)
    answers: dict[str, list[float]] = {"ls": [], "show": [], "why": []}
    helps: list[float] = []
    latencies: dict[bool, list[float]] = {True: [], False: []}
    with Stage(api=f"{RATE}/s", tenant="1000/s burst 1000") as stage:
        workers = stage.workers("ours", "ours")
        options.say(f"operating: {waiting:,} tasks go into {KEYS:,} lines")
        ids = stage.send("both", waiting, keys=[f"k{number}" for number in range(KEYS)])
        wait_until(lambda: stage.broker.llen(QUEUE) == 0, "the queue to be empty")
        # The last ones: they wait to the end.
        commands = {"ls": ["ls"], "show": ["show", "tenant", "k7"], "why": ["why", ids[-1]]}
        before, began = sum(worker.count() for worker in workers), time.monotonic()
        options.say(f"operating: {phases} phases of each")
        plain = 0
        for _ in range(phases):
            for is_busy in (True, False):
                with Probes(stage, workers) as probes:
                    for name, words in commands.items():
                        if is_busy:
                            answers[name].append(_seconds(stage, words))
                        else:
                            helps.append(_seconds(stage, [words[0], "--help"]))
                latencies[is_busy] += probes.latencies()
                plain += len(probes.sent)
        seconds = time.monotonic() - began
        started = sum(worker.count() for worker in workers) - before - plain
    busy, quiet = (percentile(latencies[is_busy], 0.99) for is_busy in (True, False))
    return Result(
        name="operating",
        theirs="the help of the same commands",
        figures=[
            *(
                Figure(f"{name}, beyond its start", "s", _extra(found, helps), at_most=ANSWER)
                for name, found in answers.items()
            ),
            Figure("start of a command", "s", median(helps)),
            Figure("plain tasks, p99", "ms", busy * 1e3, quiet * 1e3),
            Figure("plain tasks, p99, ratio", "", busy / quiet, at_most=1.2),
            Figure("quota used", "", started / (RATE * seconds), at_least=0.99),
        ],
    )


def _extra(answers: Sequence[float], helps: Sequence[float]) -> float:
    return median(answers) - median(helps)


def _seconds(stage: Stage, words: Sequence[str]) -> float:
    """Run a command as an operator does; return its seconds."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.apps.ours", "throttle", *words]
    env = {**os.environ, "BENCHMARK": json.dumps(stage.settings())}
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr}")
    return seconds
