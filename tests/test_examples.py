"""The examples run as their docstrings say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


def services(url: str) -> dict[str, str]:
    """Return the variables that let an example use one server for everything."""
    return {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url, "THROTTLE_URL": url}


def run(name: str, url: str, **env: str) -> str:
    """Return the output of the program."""
    return run_python("-m", f"examples.{name}", env=services(url) | env, seconds=200)


def test_quotas(redis_url: str, start_worker: StartWorker) -> None:
    start_worker("examples.quotas", redis_url, env=services(redis_url))
    found = re.search(r"30 tasks in ([\d.]+) s", run("quotas", redis_url))
    assert found
    assert float(found[1]) >= (30 - 1) / 23 - 0.1


@pytest.mark.thorough
def test_outbound_api(redis_url: str, start_worker: StartWorker) -> None:
    start_worker("examples.outbound_api", redis_url, env=services(redis_url))

    def is_refused_without_limit() -> bool:
        text = run("outbound_api", redis_url)
        # The API counts arrivals in any second, so one that comes a few milliseconds early or late
        # meets an 11th: then the task waits for the limit, and sends it once more.
        assert "with the limit, from tasks: 30 x 200\n" in text
        return "without a limit, from this script: 10 x 200, 10 x 429" in text

    # A busy machine may need more than a second for the calls, but not each time.
    assert any(is_refused_without_limit() for _ in range(3))


@pytest.mark.thorough
def test_instead_of(redis_url: str, tmp_path: Path) -> None:
    def uses_all_slots(number: int) -> bool:
        env = services(redis_url) | {"GALAXY_DATABASE": str(tmp_path / f"galaxy-{number}")}
        text = run_python("-m", "examples.instead_of", "--tasks", "30", env=env)
        rows = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines()[2:]]
        before, after = rows[::2], rows[1::2]
        projects = ("courtlistener", "pass_culture", "galaxy", "posthog")
        assert [row[0] for row in after] == [f"{project}, after" for project in projects]
        assert {(messages, failed) for _, _, messages, failed, *_ in after} == {("1.0", "0")}
        seconds = [float(row[4]) for row in after]
        assert all(took >= (30 - 1) / 20 - 0.1 for took in seconds[:2])
        assert seconds[2] >= (10 - 1) / 10 - 0.1
        assert all(int(new[5]) < int(old[5]) for old, new in zip(before, after, strict=True))
        most = {"1": 3, "7": 6}
        at_once = {team: int(found) for team, found in re.findall(r"(\d+): (\d+)", after[3][1])}
        assert at_once.keys() == most.keys()
        assert all(found <= most[team] for team, found in at_once.items())
        return at_once == most

    # A busy machine may start the last of so many tasks too late, but not each time.
    assert any(uses_all_slots(number) for number in range(3))


def test_bulk_fanout_without_a_worker(redis_url: str) -> None:
    with pytest.raises(AssertionError, match="Start a worker first"):
        run("bulk_fanout", redis_url)


def test_bulk_fanout(redis_url: str, client: Any, start_worker: StartWorker) -> None:
    worker = start_worker("examples.bulk_fanout", redis_url, env=services(redis_url))
    text = run("bulk_fanout", redis_url, CUSTOMERS="500")
    assert text.count("signed in after") == 3
    wait = re.search(r"500 statements wait, at 50 a second: (\d+) s", text)
    assert wait
    assert 5 <= int(wait[1]) <= 10  # the first ones may have started by then
    assert "500 statements done" in text
    assert len(set(re.findall(r"statement for (\d+)", worker.log()))) == 500
    assert not client.exists("{throttle}:lines:redis/0/celery")
