"""Server time of a task that is claimed from a line, beside a task of plain Celery's queue.

6,000 no-op tasks wait already, in a line or in the broker's queue, and one prefork worker with two
processes runs them. Sides: plain Celery, which drains its queue at the broker; a line at one limit;
and 1,000 lines of six tasks, one for each key of a template. The limits do not bind. Each side has
a server of its own of the same kind, which is the broker and keeps the limits, and a worker of its
own, which stands still while the others work.

The figures are the processor time of the server's process, user and system, from the moment the
worker continues until the last task has started; and the number of commands meanwhile, those of
scripts included. A round drains each side once. Figures are medians over the rounds, and ratios are
made within a round.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from statistics import median
from types import SimpleNamespace

from benchmarks.paced import Cost, cost_between, state_of
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import LINES, QUEUE, Stage
from celery_throttle import Limiter
from celery_throttle.limits.key import ItemLike
from celery_throttle.operations.waiting import LineTasks, ParkRequest, park_call
from celery_throttle.tasks.messages import packing

TASKS = 6_000
KEYS = [f"tenant-{number}" for number in range(1_000)]

#: Never bind: as many may start at once as wait.
API, TENANT = "1000000/s burst 1000000", "10000/s burst 10000"

#: Parks of one pipeline.
BATCH_SIZE = 500


def run(options: Options) -> Result:
    """Drain each side once a round."""
    rounds: list[list[Cost]] = []
    with contextlib.ExitStack() as ends:
        sides = [
            _Side(ends.enter_context(Stage(api=API, tenant=TENANT)), *what)
            for what in (("plain", "free"), ("ours", "limited"), ("ours", "keyed", KEYS))
        ]
        for number in range(options.pick(7, 3)):
            options.say(f"server: round {number + 1}")
            rounds.append([side.drain(options.pick(TASKS, 1_000)) for side in sides])
    return Result(
        name="server",
        theirs="plain Celery",
        figures=[
            *_figures("one line", rounds, 1, bar=1.3),
            *_figures("1,000 keys", rounds, 2, bar=1.6),
        ],
    )


def _figures(
    what: str, rounds: Sequence[Sequence[Cost]], place: int, bar: float
) -> Iterator[Figure]:
    ratios = [costs[place].us / costs[0].us for costs in rounds]
    ours, plain = [costs[place] for costs in rounds], [costs[0] for costs in rounds]
    yield Figure(
        f"{what}: processor time of the server a task, of plain",
        "",
        median(ratios),
        at_most=bar,
        rounds=ratios,
    )
    for name, unit, field in (
        ("  processor time of the server a task", "us", 0),
        ("  commands a task", "", 1),
        ("  calls of scripts a task", "", 2),
    ):
        yield Figure(
            name, unit, median(one[field] for one in ours), median(one[field] for one in plain)
        )


class _Side:
    """One worker with its server."""

    def __init__(self, stage: Stage, app: str, task: str, keys: Sequence[str] = ()) -> None:
        self._stage = stage
        self._app = app
        self._task = task
        self._keys = keys
        [self._worker] = stage.workers(app)
        self._limiter = Limiter(stage.store_url, {"api": API, "tenant": TENANT})
        self._begun = 0
        self._worker.freeze()

    def drain(self, tasks: int) -> Cost:
        """Let this number of tasks wait, then let the worker run them."""
        composed = self._stage.compose(self._task, tasks, QUEUE, self._keys)
        if self._app == "plain":
            self._stage.push(composed)
        else:
            self._park(composed)
        before = state_of(self._stage.store)
        self._worker.thaw()
        self._begun += tasks
        self._worker.wait_for(self._begun)
        cost = cost_between(before, state_of(self._stage.store), tasks)
        self._worker.freeze()
        return cost

    def _park(self, composed: Sequence[tuple[str, bytes]]) -> None:
        """Park by the call of workers that have no free process, though the limit would admit."""
        with self._stage.store.pipeline(transaction=False) as pipe:
            for number, (task_id, packed) in enumerate(composed):
                limit: ItemLike = "api"
                if self._keys:
                    limit = ("tenant", self._keys[number % len(self._keys)])
                requirement = self._limiter.require([self._limiter[limit]], 1)
                message = _as_received(packed)
                task = ParkRequest(task_id, message, requirement, rank=9, identity=task_id)
                call = park_call(self._limiter.keys, [LineTasks(LINES, [task])])
                pipe.execute_command(
                    "EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args
                )
                if number == 0:
                    self._stage.store.script_load(call.script.source.decode())
                if len(pipe) >= BATCH_SIZE:
                    pipe.execute()
            pipe.execute()


def _as_received(packed: bytes) -> bytes:
    """Return a message of the broker's list as a worker packs it for a line."""
    message = json.loads(packed)
    properties = message["properties"]
    return packing.pack(
        SimpleNamespace(
            body=base64.b64decode(message["body"]).decode(),
            headers=message["headers"],
            properties=properties,
            delivery_info=properties["delivery_info"],
            content_type=message["content-type"],
            content_encoding=message["content-encoding"],
        )
    )
