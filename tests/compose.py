"""Brings docker-compose.yml up, checks what its workers do, and takes it down: make compose."""

from __future__ import annotations

import re
import subprocess
import sys

#: A project of its own: one that runs beside it from the same file is left alone.
PROJECT = "celery-throttle-check"

#: Starts in any second of the limit in examples/quotas.py, 23/s. A start is up to 20 ms later than
#: its admission, so a second may have one more.
FULLEST_SECOND = 23 + 1

#: The end of a task in a worker's log; the tasks return the time of their start.
TASK = re.compile(r"Task examples\.quotas\.\w+\[([\w-]+)\] succeeded in \S+: ([\d.]+)")


def main() -> None:
    try:
        compose("up", "--build", "--detach")
        container = compose("ps", "--all", "--quiet", "app").strip()
        code = output("docker", "wait", container).strip()
        check(code == "0", f"the app has ended with {code}")
        check_workers(2, sent())

        compose("up", "--detach", "--no-recreate", "--scale", "worker=4", "--wait", "worker")
        before = sent()
        compose("run", "--rm", "--no-deps", "app")  # they would be two workers again
        check_workers(4, 2 * before)

        compose("stop", "worker")
        codes = compose("ps", "--all", "--format", "{{.ExitCode}}", "worker").split()
        check(set(codes) == {"0"}, f"the workers have ended with {', '.join(codes)}")
    finally:
        compose("down", "--volumes", "--timeout", "10")


def sent() -> int:
    """Return the number of tasks that the app has sent."""
    return sum(map(int, re.findall(r"(\d+) tasks in", compose("logs", "app"))))


def check_workers(count: int, tasks: int) -> None:
    """Check that so many workers are healthy, and what all of them have run."""
    health = compose("ps", "--format", "{{.Health}}", "worker").split()
    check(health == ["healthy"] * count, f"workers: {', '.join(health)}")
    runs = TASK.findall(compose("logs", "--no-log-prefix", "worker"))
    different = len({task for task, _ in runs})
    check(len(runs) == different == tasks, f"{tasks} tasks, {len(runs)} runs of {different} tasks")
    starts = sorted(float(start) for _, start in runs)
    fullest = max(sum(start <= other < start + 1 for other in starts) for start in starts)
    check(fullest <= FULLEST_SECOND, f"starts in the fullest second: {fullest}")


def check(holds: bool, text: str) -> None:  # noqa: FBT001  # read aloud, as an assertion
    print("ok:" if holds else "FAILED:", text, flush=True)
    if not holds:
        sys.exit(1)


def compose(*arguments: str) -> str:
    return output("docker", "compose", "--project-name", PROJECT, *arguments)


def output(*command: str) -> str:
    """Run a command, show what it says of its progress, and return its output."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
