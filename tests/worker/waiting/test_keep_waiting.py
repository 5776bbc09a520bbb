"""Of the tasks that wait with one name and key, real workers run the newest, or the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis import Redis

from celery_throttle import ConfigurationError, FanOutError, Limiter, Throttle
from tests.apps import kept
from tests.servers.server import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.workers

KEYS, VERSIONS, SECONDS = 10, 20, 60
SURPLUS = KEYS * (VERSIONS - 1)


class Shop:
    """The client's side."""

    def __init__(self, url: str) -> None:
        kept.connect(url)
        self.url = url
        self.redis = Redis.from_url(url)
        self.limiter = Limiter(url, {"search": "1000/s"})

    def worker(self) -> Worker:
        return Worker("tests.apps.kept", self.url)

    def send(self, task: Any, *versions: int) -> dict[tuple[int, int], AsyncResult]:
        """Send some versions of each document, by default all."""
        return {
            (document, version): task.delay(document, version)
            for version in versions or range(VERSIONS)
            for document in range(KEYS)
        }

    def wait_until_parked(self, tasks: int) -> None:
        """Wait until so many tasks have come to their lines."""
        wait_until(lambda: self._arrivals() == tasks, "all tasks in their lines")

    def _arrivals(self) -> float:
        totals = self.limiter["search"].status().totals
        return totals.parked + dict(totals.dropped).get("surplus", 0)

    def states(self, sent: dict[tuple[int, int], AsyncResult]) -> Counter[str]:
        return Counter(result.state for result in sent.values())

    def waiting(self) -> int:
        return self.limiter["search"].status().waiting


@pytest.fixture
def shop(redis_url: str) -> Iterator[Shop]:
    shop = Shop(redis_url)
    shop.limiter.register()
    shop.limiter["search"].pause(None)
    yield shop
    shop.redis.close()


def test_the_newest_of_each_key_runs(shop: Shop) -> None:
    with shop.worker(), shop.worker():
        sent = shop.send(kept.index)
        wait_until(lambda: shop.states(sent)["REVOKED"] == SURPLUS, "tasks in that state")
        assert shop.waiting() == KEYS, "the others leave while the limit is paused"
        shop.limiter["search"].resume()
        wait_until(lambda: shop.states(sent)["SUCCESS"] == KEYS, "tasks in that state")
        assert shop.states(sent) == {"REVOKED": SURPLUS, "SUCCESS": KEYS}
        found: list[bytes] = shop.redis.lrange("runs", 0, -1)  # type: ignore[assignment]  # not async
        runs = sorted(line.decode() for line in found)
        parked = {key for key, result in sent.items() if result.state == "SUCCESS"}
        assert runs == sorted(f"{document} {version}" for document, version in parked)
        assert {document for document, _ in parked} == set(range(KEYS))
        revoked = next(one for one in sent.values() if str(one.state) == "REVOKED")
        with pytest.raises(TaskRevokedError, match="another task waits in its line"):
            revoked.get(timeout=SECONDS)
        assert len(set(shop.redis.lrange("revoked", 0, -1))) == SURPLUS
        assert shop.limiter["search"].status().totals.replaced == SURPLUS


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "first", "last", "kept_version"),
    [
        (kept.index, range(VERSIONS - 1), [VERSIONS - 1], VERSIONS - 1),
        (kept.refresh, [0], range(1, VERSIONS), 0),
    ],
)
def test_the_very_newest_or_first_runs(
    shop: Shop, task: Any, first: Sequence[int], last: Sequence[int], kept_version: int
) -> None:
    """Tasks that reach workers within milliseconds join their line in any order; these do not."""
    with shop.worker():
        sent = shop.send(task, *first)
        shop.wait_until_parked(len(sent))
        sent |= shop.send(task, *last)
        wait_until(lambda: shop.states(sent)["REVOKED"] == SURPLUS, "the end of all but one")
        shop.limiter["search"].resume()
        wait_until(lambda: shop.states(sent)["SUCCESS"] == KEYS, "the run of one of each key")
    ran = {key for key, result in sent.items() if result.state == "SUCCESS"}
    assert ran == {(document, kept_version) for document in range(KEYS)}
    totals = shop.limiter["search"].status().totals
    assert totals.replaced + dict(totals.dropped)["surplus"] == SURPLUS


@pytest.fixture
def index(shop: Shop) -> Iterator[Any]:
    """The task of that name, sent straight to its line if another task waits there."""
    with Celery("lines", broker=shop.url, backend=shop.url, set_as_current=False) as app:
        app.conf.update(throttle_publish="line", task_default_queue="kept")
        Throttle(app, {"search": "1000/s"}, url=shop.url)
        options: dict[str, Any] = {
            "throttle": "search:{document}",
            "throttle_keep_waiting": "newest",
        }

        @app.task(name=kept.index.name, shared=False, **options)
        def index(document: int, version: int) -> None: ...

        yield index


@pytest.mark.thorough
def test_a_worker_that_is_killed_while_it_ends_tasks_loses_none(shop: Shop, index: Any) -> None:
    with shop.worker():
        sent = shop.send(index, 0)
        shop.wait_until_parked(KEYS)
    # Straight to lines: kombu loses messages of Redis that a killed worker was just receiving.
    sent |= shop.send(index, *range(1, VERSIONS))
    assert shop.redis.llen("kept") == 0
    killed = shop.worker()
    killed.start()
    wait_until(lambda: shop.states(sent)["REVOKED"] > 0, "the end of some tasks")
    killed.kill()
    killed.wait()
    killed.close()
    with shop.worker():
        wait_until(lambda: shop.states(sent)["REVOKED"] == SURPLUS, "the end of all but one")
        shop.limiter["search"].resume()
        wait_until(lambda: shop.states(sent)["SUCCESS"] == KEYS, "the run of one of each key")
        assert shop.states(sent) == {"REVOKED": SURPLUS, "SUCCESS": KEYS}


def test_what_is_sent_to_a_line_replaces_the_task_there(shop: Shop, index: Any) -> None:
    with shop.worker():
        sent = {(1, 0): index.delay(1, 0)}
        wait_until(lambda: shop.waiting() == 1, "tasks in that state")
        sent |= {(1, version): index.delay(1, version) for version in range(1, 5)}
        assert shop.redis.llen("kept") == 0
        wait_until(lambda: shop.states(sent)["REVOKED"] == 4, "tasks in that state")
        shop.limiter["search"].resume()
        assert sent[1, 4].get(timeout=SECONDS) == 4


def _task(app: Celery, value: Any) -> Any:
    def body() -> None: ...

    options: dict[str, Any] = {"throttle": "search", "throttle_keep_waiting": value}
    task: Any = app.task
    return task(name=f"task-{value}", shared=False, **options)(body)


def test_where_it_is_refused(redis_url: str) -> None:
    with Celery("refused", broker=redis_url, set_as_current=False) as app:
        throttle = Throttle(app, {"search": "1000/s"}, url=redis_url)
        one, wrong = (_task(app, value) for value in ("newest", 1))
        with pytest.raises(FanOutError, match="throttle_keep_waiting='newest'"):
            throttle.fan_out([one.s()])
        with pytest.raises(ConfigurationError, match="is 1: it must be 'all', 'newest' or 'first'"):
            wrong.delay()
    with Celery("broker", broker=redis_url, set_as_current=False) as app:
        app.conf.throttle_waiting = "broker"
        Throttle(app, {"search": "1000/s"}, url=redis_url)
        one = _task(app, "first")
        with pytest.raises(ConfigurationError, match="needs lines, but throttle_waiting"):
            one.delay()
