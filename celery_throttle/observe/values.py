"""The status of limits and tasks, as immutable values. Times are in UTC, by the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.totals import Totals
from celery_throttle.operations.author import Author


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the definition of a limit comes from.

    Attributes:
        layer: ``"code"``, ``"rules"`` (the rules file) or ``"run time"`` (``define``).
        since: When the limits in force replaced the previous limits.
        defined: When this definition was made; None if unknown.
        author: Who made it, and why; None if unknown.
        until: When the definition ends by itself; None for never.
    """

    layer: str
    since: datetime
    defined: datetime | None = None
    author: Author | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of a limit, or of one key of it.

    Attributes:
        limit: The name of the limit; ``"@fan-out"`` for the pause of a fan-out, whose encoded name
            is the key.
        key: The encoded key that is paused; None if the whole limit is paused.
        seconds: The seconds from now to the end of the pause; infinity if it has no end.
        until: The end of the pause as a time; None if it has no end.
        since: When the pause was made or last extended; None if unknown.
        author: Who made it, and why; None if unknown. ``by`` is ``"API"`` for a pause that the
            response of an API caused.
    """

    limit: str
    key: str | None
    seconds: float
    until: datetime | None
    since: datetime | None
    author: Author | None


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    """A request that an API refused, such as with the status 429.

    Attributes:
        at: When the limit learned of it.
        key: The encoded key of the limit that the request needed; None without a key.
        task_id: The id of the task that sent the request; None if no task did, or if it is unknown.
        task: The name of that task; None likewise.
    """

    at: datetime
    key: str | None
    task_id: str | None
    task: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of one clause of a limit is in use.

    Attributes:
        clause: The text of the clause, such as ``"100/s burst 20"``.
        used: The units, or slots, in use now.
        most: The most units that can be in use at once, which is the burst; or the number of slots.
        reset_after: The seconds until nothing is in use, if no more units are taken.
        share: The rate, or the number of slots, in force divided by the written one: 1.0, or less
            for an adaptive limit.
    """

    clause: str
    used: float
    most: int
    reset_after: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """The status of one limit, or of one key of it.

    Attributes:
        name: The name of the limit.
        key: The encoded key; None for the limit itself.
        defined: Whether the limit is defined. If not, only the attributes about waiting tasks
            have a value.
        clauses: The texts of the limits in force; all of them must allow a request.
        origin: Where these limits come from; None if the server does not have them yet.
        weight: The weight of lines that need the limit, 1 to 100.
        usage: The usage of each clause. Without a key, it covers only units taken without a key.
        pauses: The pause of the limit and, with a key, the pause of the key; empty if neither is
            paused.
        paused_keys: The number of keys of the limit that are paused.
        own_keys: The number of keys of the limit that have their own definition or weight.
        has_keys: Whether the limit applies to each key, as far as the server knows: tasks of a
            worker need keys of it, or a key has waiting tasks, a pause, or its own definition or
            weight. Always False for a key.
        waiting: The number of tasks that wait at the limit, or at this key. Without a key, tasks
            that wait at a key of the limit are included. A task that needs several limits waits at
            one of them and is counted there only.
        waiting_keys: The number of keys with waiting tasks.
        runnable: The number of waiting tasks for which units are available but which no process
            has taken for half a second.
        oldest: The seconds that the oldest waiting task has waited; a lower bound if more than
            2,000 lines wait; None if no task waits.
        forecast: When the waiting tasks will have started; None if no task waits.
        totals: The counts of the limit, with all its keys together.
        last_api_refusal: The last request that an API refused because of the limit, or of any key
            of it; None if it refused none since the totals began.
    """

    name: str
    key: str | None
    defined: bool
    clauses: tuple[str, ...]
    origin: Origin | None
    weight: int
    usage: tuple[Usage, ...]
    pauses: tuple[Pause, ...]
    paused_keys: int
    own_keys: int
    has_keys: bool
    waiting: int
    waiting_keys: int
    runnable: int
    oldest: float | None
    forecast: Forecast | None
    totals: Totals
    last_api_refusal: ApiRefusal | None


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A slot in use.

    Attributes:
        holder: The name of the worker that runs the task, or of another holder.
        task_id: The id of the task; None if the holder is not a task of a worker.
        lease: The seconds until the slot is free if its lease is not renewed.
    """

    holder: str
    task_id: str | None
    lease: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue in which tasks wait at a limit.

    Attributes:
        name: The broker and the queue, such as ``"redis/0/celery"``. The commands show the name
            without the broker of the app.
        waiting: The number of its tasks that wait at the limit.
        is_exact: Whether the number is exact. If not, there are more lines than are looked at, and
            the number is a lower bound.
        consumed: Whether a live worker has reported in the last minute that it consumes the queue.
    """

    name: str
    waiting: int
    is_exact: bool
    consumed: bool


@dataclass(frozen=True, slots=True)
class Period:
    """The counts of one period of time.

    Attributes:
        start: The start of the period.
        end: The end of the period.
        totals: The increase of the totals in the period.
        waiting: The number of tasks that waited at the end of the period.
        most_waiting: The highest number of waiting tasks that was recorded in the period. Records
            are 10 seconds apart; those older than 15 minutes are 10 minutes apart.
        paused: The number of tasks that a pause of the limit, or of their key, held up at the end.
    """

    start: datetime
    end: datetime
    totals: Totals
    waiting: int
    most_waiting: int
    paused: int

    @property
    def seconds(self) -> float:
        """The length of the period, above 0.

        :meta private:
        """
        return max((self.end - self.start).total_seconds(), 1 / MICROSECONDS)


@dataclass(frozen=True, slots=True)
class LimitDetails(LimitStatus):
    """The status of one limit, or of one key of it, with its details.

    Attributes:
        recent: The last 15 minutes as 30 periods, the oldest first. They cover the whole limit,
            also in the details of a key.
        queues: The queues in which tasks wait at the limit, the queue with the most tasks first.
        top_keys: Pairs of an encoded key and its number of waiting tasks: the ten keys with the
            most tasks. Empty in the details of a key.
        top_paused_keys: Pairs of an encoded key and the end of its pause, a UTC datetime. None: the
            pause lasts until it is resumed. The ten keys whose pauses end last. Empty in the
            details of a key.
        slots_used: The number of slots in use.
        slots: The holders of slots, at most 100.
        fan_outs: The encoded names of the fan-outs whose waiting tasks need the limit, at most
            100. If more than 2,000 lines wait, some of them.
        lost_shards: The shards that have keys of the limit and cannot be reached: what they have is
            missing.
    """

    recent: tuple[Period, ...]
    queues: tuple[QueueStatus, ...]
    top_keys: tuple[tuple[str, int], ...]
    top_paused_keys: tuple[tuple[str, datetime | None], ...]
    slots_used: int
    slots: tuple[SlotHolder, ...]
    fan_outs: tuple[str, ...]
    lost_shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stranded:
    """Waiting tasks that no live worker can start.

    Attributes:
        queue: The queue in which the tasks wait, as in :class:`QueueStatus`; empty unless ``why``
            is ``"queue"``.
        tasks: The number of tasks; None if they were not counted.
        why: ``"queue"`` (no live worker consumes the queue), ``"limit"`` (a limit that the tasks
            need is not defined) or ``"task"`` (no live worker has code for the tasks).
        what: The queue, or the name of the limit; empty if ``why`` is ``"task"``.
    """

    queue: str
    tasks: int | None
    why: str
    what: str


@dataclass(frozen=True, slots=True)
class Ungated:
    """A task with limits that its own strategy starts, later than it passes the gate.

    Attributes:
        task: The name of the task. Its units are taken when its strategy gets a message.
        releases_early: Whether its slots are released when it starts, and not at its end.
    """

    task: str
    releases_early: bool


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """A live worker whose rules file differs from the rules in force, or has mistakes.

    Attributes:
        worker: The name of the worker.
        path: The path of its rules file.
        error: The mistakes in the file, one on each line; None if the file only differs.
    """

    worker: str
    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RulesStatus:
    """The rules file in force.

    Attributes:
        source: The path of the file; None if no file is in force yet.
        modified: When the file was modified; None if no file is in force yet.
        applied: When the file was put in force; None if no file is in force yet.
        author: Who put it in force, and why; None if unknown.
        others: The live workers whose file differs from it or has mistakes.
    """

    source: str | None
    modified: datetime | None
    applied: datetime | None
    author: Author | None
    others: tuple[WorkerRules, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of all limits of a server, one page at a time.

    Attributes:
        at: The server's time.
        limits: The limits of this page, in the order of their names.
        next: The ``after`` of the next page; None if this is the last page.
        workers: The number of live workers.
        stranded: The waiting tasks that no live worker can start, of undefined limits those of this
            page only.
        rules: The rules file in force; None if there never was a rules file.
        ungated: The tasks whose own strategies have started them in the last ten minutes.
        lost_shards: The shards whose server cannot be reached: their limits are missing.
    """

    at: datetime
    limits: tuple[LimitStatus, ...]
    next: str | None
    workers: int
    stranded: tuple[Stranded, ...]
    rules: RulesStatus | None = None
    ungated: tuple[Ungated, ...] = ()
    lost_shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect that a change of limits would have on the tasks that wait for them.

    Attributes:
        waiting: The number of tasks in lines that need one of the limits, wherever the lines wait.
            If more than 2,000 lines wait, those that wait at these limits.
        before: When the last of them starts without the change.
        after: When the last of them starts with the change.
    """

    waiting: int
    before: Forecast
    after: Forecast


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log of changes.

    Attributes:
        id: The id of the entry, for the argument ``before``.
        at: When the change was made.
        action: ``"define"``, ``"undefine"`` or ``"end"`` of a definition at run time; ``"code"`` or
            ``"rules"`` for a definition of these layers; ``"weight"``; ``"pause"``, ``"resume"`` or
            ``"reset"``; ``"shard"`` of a limit that has moved to another shard, whose names are
            ``old`` and ``new``; ``"drain"``, ``"move"`` or ``"drop"`` of waiting tasks;
            ``"cancel"`` of a fan-out.
        limit: The name of the limit; for the change of a key, also ``:`` and the encoded key;
            ``"@fan-out:"`` and the encoded name of a fan-out; empty for waiting tasks of all
            limits.
        old: The text of the limits, the weight, or the length of a pause in microseconds, before
            the change. Empty if there was none.
        new: The same value after the change; or the number of tasks that were taken out of lines.
        author: Who made the change, and why; None if unknown.
        until: When the new definition or weight ends by itself; None for never.
    """

    id: str
    at: datetime
    action: str
    limit: str
    old: str
    new: str
    author: Author | None
    until: datetime | None = None
