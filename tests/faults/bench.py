"""A bench for faults: workers, the tasks they were sent, and what they wrote down."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from kombu import Connection

from celery_throttle import Limiter
from celery_throttle.store.keys import Keys
from tests.faults import app as faults
from tests.servers.server import wait_until
from tests.workers import QUICK, Worker

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

#: Only what fails takes so long.
SECONDS = 60


class Bench:
    """Workers of the app of faults. What they write down is kept where no fault reaches it.

    Args:
        broker: URL of the broker.
        store: URL of the server of the limits.
        records: URL of the server where starts are written down; the broker's unless given.
        conf: settings of the app.
        queue_type: of RabbitMQ: classic or quorum.
        options: of the workers.
    """

    def __init__(
        self,
        broker: str,
        store: str,
        *,
        records: str | None = None,
        conf: dict[str, Any] | None = None,
        queue_type: str = "classic",
        **options: Any,
    ) -> None:
        self.queue = f"faults-{uuid.uuid4().hex[:8]}"
        self._broker = broker
        self._options = options
        self._env = {
            "THROTTLE_URL": store,
            "RECORDS_URL": records or broker,
            "FAULTS_QUEUE": self.queue,
            "FAULTS_CONF": json.dumps(conf or {}),
            "FAULTS_QUEUE_TYPE": queue_type,
        }
        self.records = redis.Redis.from_url(records or broker)
        self._link = Connection(broker)
        faults.queue(self.queue, queue_type)(self._link.default_channel).declare()
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            print(f"--- {worker.hostname}\n{worker.log()[-4000:]}")
            worker.close()
        self.records.delete("faults:starts", "faults:ends", "faults:modes", "faults:let-go")
        self._link.release()

    def start_worker(self, **options: Any) -> Worker:
        """One more, that need not be ready yet."""
        env = {**self._env, **options.pop("env", {})}
        given = {"options": QUICK, **self._options, **options}
        worker = Worker("tests.faults.app", self._broker, env=env, **given)
        self.workers.append(worker)
        worker.start()
        return worker

    def replace(self, worker: Worker) -> None:
        """Another one in the place of one that was killed."""
        worker.wait()
        worker.close()
        self.workers.remove(worker)
        self.start_worker()

    def start_workers(self, count: int, **options: Any) -> None:
        started = [self.start_worker(**options) for _ in range(count)]
        for worker in started:
            worker.wait_until_ready()

    def send(
        self, task: str, numbers: Iterable[int], *args: Any, task_id: str | None = None
    ) -> None:
        for number in numbers:
            getattr(faults, task).apply_async(
                (number, *args),
                task_id=task_id,
                connection=self._link,
                exchange=self.queue,
                routing_key=self.queue,
            )

    def let_go(self, count: int) -> None:
        """Let so many tasks end that are held."""
        self.records.rpush("faults:let-go", *range(count))

    def stats(self, worker: Worker) -> dict[str, Any]:
        """What a worker says of its limits."""
        replies: dict[str, Any] = {}
        with Celery(broker=self._broker, set_as_current=False) as app:
            inspect: Any = app.control.inspect([worker.hostname], timeout=5, limit=1)

            def replied() -> bool:
                replies.update(inspect.stats() or {})
                return bool(replies)

            # One that is ready may not listen to commands yet.
            self.until(replied, f"a reply of {worker.hostname}")
        stats: dict[str, Any] = replies[worker.hostname]["throttle"]
        return stats

    def until_each_knows_all(self, count: int | None = None) -> None:
        """Until each worker has heard how many there are: those of this bench, unless given."""
        count = count or len(self.workers)
        self.until(
            lambda: all(self.stats(worker)["workers"] == count for worker in self.workers),
            f"each of {count} workers knows all of them",
        )

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.records.lrange(f"faults:{name}", 0, -1)]

    def starts(self, task: str) -> list[dict[str, Any]]:
        """By time."""
        rows = [row for row in self.rows("starts") if row["task"].endswith(f".{task}")]
        return sorted(rows, key=lambda row: row["at"])

    def until_started(self, task: str, count: int, seconds: float = SECONDS) -> None:
        """Until so many different ones have started at least once."""
        self.until(
            lambda: len({row["number"] for row in self.starts(task)}) >= count,
            f"{count} starts of {task}",
            seconds,
        )

    def check_counters(self, limit: str, task: str, admitted_per_kill: int = 0) -> None:
        """Checks what was counted of a limit against the starts of its tasks; none waits any more.

        Units may be granted to a worker that dies before it starts the task: those of its claims go
        back to their lines, those of tasks at its gate are gone.
        """
        with redis.Redis.from_url(self._env["THROTTLE_URL"]) as client:
            wait_until(lambda: not client.exists(Keys().workers), "the end of all claims")
        totals = Limiter(self._env["THROTTLE_URL"])[limit].status().totals
        assert totals.parked + totals.requeued == totals.claimed + totals.handed_out, totals
        starts = len(self.starts(task))
        assert starts <= totals.granted <= starts + totals.requeued + admitted_per_kill, totals

    def now(self) -> float:
        """By the clock that rows are written with."""
        seconds, micros = self.records.time()
        return float(seconds + micros / 1e6)

    def until(self, true: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        wait_until(true, what, seconds)
