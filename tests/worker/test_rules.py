"""Workers with a rules file: read at the start, watched, and swapped under load."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.operations.define import read_definitions
from celery_throttle.store import definitions
from tests.apps import ruled
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

SECONDS = 60

#: Two files: `api` and the route differ, and each has a limit that the other does not have.
SLOW = """
[limits]
api = "20/s"
left = "1000/s burst 1000"
[routes]
routed = "left"
"""
FAST = """
[limits]
api = "40/s"
right = "1000/s burst 1000"
[routes]
"rout*" = "right"
"""

#: The time, what was granted, and the limit in force.
SAMPLE = """
local time = redis.call('TIME')
local record = redis.call('HGET', '{throttle}:limits', 'api')
local text_at, layers_at = struct.unpack('<II', record or string.rep(' ', 33), 26) -- TEXT_AT
return { string.format('%.0f', time[1] * 1000000 + time[2]),
         redis.call('HGET', '{throttle}:totals:api', 'granted') or '0',
         record and string.sub(record, text_at, layers_at - 1) }
"""


class Site:
    """A server, a rules file, and workers that watch it."""

    def __init__(self, url: str, path: Path, start_worker: StartWorker) -> None:
        self.url = url
        self.path = path
        self.client: Any = redis.Redis.from_url(url)
        self.limiter = Limiter(url)
        self._start = start_worker

    def worker(self, path: Path | None = None, *, wait: bool = True) -> Worker:
        env = {"RULES": str(path or self.path), "THROTTLE_URL": self.url}
        return self._start("tests.apps.ruled", self.url, env=env, wait=wait)

    def send(self, name: str, count: int, *args: Any) -> None:
        with ruled.app.connection_for_write(self.url) as connection:
            for _ in range(count):
                ruled.app.send_task(name, args, connection=connection)

    def ran(self, name: str) -> list[bytes]:
        """The workers that ran tasks of a name."""
        found: list[bytes] = self.client.lrange(f"ran:{name}", 0, -1)
        return found

    def in_force(self, name: str) -> str | None:
        """The limit of a name; None if it is not defined."""
        found = self.limiter.run_plan(read_definitions(self.limiter.plans, [name]))[0]
        return str(definitions.unpack(found)[0]) if found else None

    def reports(self) -> list[dict[str, Any]]:
        """What the workers report about their files."""
        rows = self.client.hgetall("{throttle}:rules-files").values()
        return [json.loads(row.split(b" ", 1)[1]) for row in rows]

    def until(self, true: Callable[[], bool], what: str) -> None:
        wait_until(true, what, SECONDS)

    def until_ran(self, name: str, count: int) -> None:
        self.until(lambda: len(self.ran(name)) >= count, f"{count} runs of {name}")

    def until_in_force(self, text: str) -> None:
        self.until(lambda: self.in_force("api") == text, f"{text} is in force")

    def until_reported(self, *texts: str) -> None:
        """Wait until the workers report files with these contents."""
        digests = sorted(read_rules(text, "").digest for text in texts)
        self.until(
            lambda: sorted(one["digest"] for one in self.reports()) == digests, "all have reported"
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits.toml"
    path.write_text(SLOW)
    return path


@pytest.fixture
def site(redis_url: str, path: Path, start_worker: StartWorker) -> Site:
    return Site(redis_url, path, start_worker)


def rename(path: Path, text: str) -> None:
    """Replace a file as editors do."""
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def swap(path: Path, text: str) -> None:
    """Replace a file as Kubernetes updates a ConfigMap; the content has an old time."""
    folder = path.parent
    for name, content in (("..slow", SLOW), ("..fast", FAST)):
        if not (folder / name).exists():
            (folder / name).mkdir()
            (folder / name / path.name).write_text(content)
            os.utime(folder / name / path.name, (1_000_000, 1_000_000))
    (folder / "..tmp").symlink_to("..slow" if text == SLOW else "..fast")
    (folder / "..tmp").rename(folder / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


class Samples(threading.Thread):
    """Samples of the units granted and the limit in force, each taken in one call.

    Attributes:
        rows: time in microseconds, units granted until then, limit in force.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.rows: list[tuple[int, float, str | None]] = []
        self._url = url
        self._ended = threading.Event()

    def run(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            while not self._ended.wait(0.02):
                found: Any = client.eval(SAMPLE, 0)
                text = str(definitions.unpack(found[2])[0]) if found[2] else None
                self.rows.append((int(found[0]), int(found[1]) / MILLION, text))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def assert_never_over(self) -> None:
        """While a limit is in force it grants its rate and a burst of one; 20 ms may be ahead."""
        assert {text for _, _, text in self.rows} == {"20/s", "40/s"}
        assert_never_over(self.rows, 40)
        for text, rows in groupby(self.rows, lambda row: row[2]):
            assert_never_over([*rows], int(str(text).split("/")[0]))


def assert_never_over(rows: Sequence[tuple[int, float, str | None]], rate: int) -> None:
    """Between any two samples: at most what the rate allows, and a burst."""
    beyond = [granted - rate * at / MILLION for at, granted, _ in rows]
    for last, least in zip(beyond, accumulate(beyond, min), strict=True):
        assert last - least <= 1 + rate * 0.02


@pytest.mark.thorough
@pytest.mark.parametrize("replace", [rename, swap])
def test_two_files_swapped_under_load(site: Site, replace: Callable[[Path, str], None]) -> None:
    replace(site.path, SLOW)
    workers = [site.worker(wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    site.send("named", 1500)
    site.until_ran("named", 20)
    samples = Samples(site.url)
    samples.start()
    for turn in range(10):
        text = SLOW if turn % 2 else FAST
        replace(site.path, text)
        site.until_in_force("20/s" if turn % 2 else "40/s")
        site.send("routed", 10, turn)
        site.until_reported(text, text)
        site.until_ran("named", len(site.ran("named")) + 10)
    samples.end()
    site.until_ran("routed", 100)
    samples.assert_never_over()
    for worker in workers:
        assert "UnknownLimitError" not in worker.log()
        assert "ERROR" not in worker.log()


def test_the_file_is_in_force_before_tasks_run(site: Site) -> None:
    site.send("named", 30)
    worker = site.worker()
    site.until_ran("named", 30)
    log = worker.log()
    assert log.count("Rules of ") == 1
    assert f'Rules of {site.path} in force: limit api added: "20/s"; limit left added' in log


def test_a_wrong_file_changes_nothing_and_is_reported_once(site: Site) -> None:
    worker = site.worker()
    rename(site.path, '[limits]\napi = "20/fortnight"')
    mistake = f"{site.path}:2: limit 'api': unknown unit 'fortnight'"
    site.until(lambda: mistake in worker.log(), "the mistake is logged")
    site.until(lambda: mistake in site.reports()[0]["error"], "the mistake is reported")
    assert site.in_force("api") == "20/s"
    rename(site.path, FAST)
    site.until_in_force("40/s")
    site.until(lambda: not site.reports()[0]["error"], "no mistake is reported")
    assert worker.log().count("ERROR") == 1


def test_a_worker_starts_with_a_wrong_file_and_keeps_what_the_server_has(site: Site) -> None:
    apply_rules(site.limiter, read_rules(SLOW, "before"), "before")
    site.path.write_text("wrong")
    worker = site.worker()
    site.send("named", 3)
    site.until_ran("named", 3)
    assert site.in_force("api") == "20/s"
    assert worker.log().count("ERROR") == 1
    site.send("routed", 1, 0)
    site.until_ran("routed", 1)


def test_the_newest_file_wins_and_the_others_are_reported(site: Site, tmp_path: Path) -> None:
    older = tmp_path / "older.toml"
    older.write_text(FAST)
    os.utime(older, (1_000_000, 1_000_000))
    workers = [site.worker(), site.worker(older)]
    site.until_reported(SLOW, FAST)
    assert site.in_force("api") == "20/s"
    older_says = "older.toml is older than the rules in force"
    site.until(lambda: older_says in workers[1].log(), "the worker says so")
    site.send("routed", 20, 0)  # by a route and limit that only the newest file has
    site.until_ran("routed", 20)
    workers[1].terminate()
    workers[1].wait()
    assert len(site.reports()) == 1


def test_a_flushed_server_gets_the_rules_again(site: Site) -> None:
    worker = site.worker()
    for count in (5, 10, 15):
        site.send("named", 5)
        site.until_ran("named", count)
        for key in ("limits", "rules", "names"):
            site.client.delete(f"{{throttle}}:{key}")
    site.until_in_force("20/s")
    assert "UnknownLimitError" not in worker.log()


def test_rules_with_which_tasks_fail_are_a_wrong_file(site: Site) -> None:
    worker = site.worker()
    rename(site.path, '[limits]\nleft = "1/s"')
    site.until(lambda: "task 'named'" in worker.log(), "the mistake is logged")
    assert site.in_force("api") == "20/s"


def test_rules_that_would_switch_a_limit_to_slots_are_refused(site: Site) -> None:
    worker = site.worker()
    site.limiter["other"].define("5/s")
    rename(site.path, SLOW.replace("[routes]", 'other = "5 at once"\n[routes]'))
    text = "limit 'other' cannot become '5 at once'"
    site.until(lambda: text in worker.log(), "it is logged")
    site.until(lambda: text in site.reports()[0]["error"], "it is reported")
    assert site.in_force("other") == "5/s"
    assert worker.log().count(text) == 1
