"""The status of limits and tasks, as immutable values. Times are in UTC, by the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_throttle.forecasts.solver import Forecast
from celery_throttle.limits.author import Author
from celery_throttle.observe.totals import Totals


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the definition of a limit comes from.

    Attributes:
        layer: ``"code"``, ``"rules"`` (the rules file), or ``"run time"`` (``define``).
        since: when the limits in force replaced others.
        defined: when this definition was given; None if that is not known.
        author: who gave it, and why; None if that is not known.
        until: when it ends by itself; None for never.
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
        limit: its name; ``"fan-out"`` for the pause of a fan-out, whose name is the key.
        key: the key that is paused; None if the whole limit is.
        seconds: from now until its end; infinity until it is resumed.
        until: the same as a time; None until it is resumed.
        since: when it was made or last extended; None if that is not known.
        author: who made it, and why; None if that is not known. ``by`` is ``"API"`` for a pause
            that follows from the answer of an API.
    """

    limit: str
    key: str | None
    seconds: float
    until: datetime | None
    since: datetime | None
    author: Author | None


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of one clause of a limit is in use.

    Attributes:
        clause: the text of the limit, such as ``"100/s burst 20"``.
        used: units in use now; for slots, slots in use.
        most: units that can be in use at once: its burst.
        reset_after: seconds until nothing is in use, if nothing is taken.
        share: the rate in force as a share of the written one; below 1 only for adaptive limits.
    """

    clause: str
    used: float
    most: int
    reset_after: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit, or one key of it.

    Attributes:
        name: of the limit.
        key: the key as it is stored; None for the limit itself.
        defined: whether it is. The other attributes are empty if it is not, except for the tasks
            that wait for it.
        clauses: the limits in force; all have to allow.
        origin: where they come from.
        weight: of lines that need it.
        usage: of each clause; for a limit, of what is taken without a key.
        pauses: of the limit, and of the key; empty if it is not paused.
        paused_keys: how many keys of the limit are paused.
        own_keys: how many keys of the limit have a definition or a weight of their own.
        waiting: tasks that wait at it; tasks that need it and wait at another limit are not
            counted. With those of its keys.
        waiting_keys: how many keys have waiting tasks.
        runnable: waiting tasks for which there are units, and that no process takes.
        oldest: seconds for which the oldest of the waiting tasks has waited; at least, if more than
            2,000 lines wait. None if none waits.
        forecast: when they will have started; None if nothing waits, or more than 2,000 lines do.
        totals: what was counted, for all keys of the limit.
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
    waiting: int
    waiting_keys: int
    runnable: int
    oldest: float | None
    forecast: Forecast | None
    totals: Totals


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A slot in use.

    Attributes:
        holder: the worker that runs the task, or the name of another holder.
        task_id: None if no task of a worker holds it.
        lease: seconds until it is free if nobody renews it.
    """

    holder: str
    task_id: str | None
    lease: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue in which tasks wait at a limit.

    Attributes:
        name: of the queue, without its broker if that is the app's.
        waiting: tasks that wait at this limit, in the first 2,000 lines.
        consumed: whether a live worker has reported lately that it consumes the queue.
    """

    name: str
    waiting: int
    consumed: bool


@dataclass(frozen=True, slots=True)
class Period:
    """What was counted in a part of time.

    Attributes:
        start, end: of the part.
        totals: the increase of the totals.
        waiting: tasks that waited at the end.
    """

    start: datetime
    end: datetime
    totals: Totals
    waiting: int


@dataclass(frozen=True, slots=True)
class LimitDetails:
    """All of one limit, or of one key of it.

    Attributes:
        status: its status.
        recent: the last 15 minutes in 30 parts, the oldest first; of the whole limit, also for a
            key.
        queues: in which tasks wait at it.
        top_keys: keys with the most waiting tasks and how many wait, up to ten.
        slots_used: slots in use.
        slots: holders of slots, up to a hundred.
        fan_outs: names of the fan-outs whose tasks wait for it, up to a hundred.
    """

    status: LimitStatus
    recent: tuple[Period, ...]
    queues: tuple[QueueStatus, ...]
    top_keys: tuple[tuple[str, int], ...]
    slots_used: int
    slots: tuple[SlotHolder, ...]
    fan_outs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stranded:
    """Waiting tasks that no live worker can start.

    Attributes:
        queue: in which they wait.
        tasks: how many; None if that was not counted.
        why: ``"queue"`` (no live worker consumes it), ``"limit"`` (a limit that they need is not
            defined) or ``"task"`` (no live worker has code for it).
        what: the queue, the limit, or the name of the task.
    """

    queue: str
    tasks: int | None
    why: str
    what: str


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """A live worker whose rules file is not the one in force.

    Attributes:
        worker: its name.
        path: of its file.
        error: the mistakes of the file, one in a line; None if it only differs.
    """

    worker: str
    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RulesStatus:
    """The rules file in force.

    Attributes:
        source: path of the file; None if none is in force yet.
        modified: when it was modified.
        applied: when it was put in force.
        author: who did that, and why.
        others: live workers whose file is another one, or wrong.
    """

    source: str | None
    modified: datetime | None
    applied: datetime | None
    author: Author | None
    others: tuple[WorkerRules, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """All limits of a server, some at a time.

    Attributes:
        at: the server's time.
        limits: by name.
        next: where the next page begins; None if this is the last one.
        workers: live workers.
        stranded: tasks that no worker can start.
        rules: the rules file in force; None if there never was one.
    """

    at: datetime
    limits: tuple[LimitStatus, ...]
    next: str | None
    workers: int
    stranded: tuple[Stranded, ...]
    rules: RulesStatus | None = None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is, and why it does not run yet.

    Attributes:
        task_id: of the task.
        location: ``"line"``: it waits in Redis; ``"claimed"``: a worker has taken it, and runs it
            now or in a moment; ``"quarantine"``: it waits for a worker that has code for it;
            ``"unknown"``: it is not here: it is still at the broker, a worker runs it without
            having waited, it has ended, or it never was.
        queue: its queue; None for an unknown task.
        task: the name of the task; None if it is not known.
        waited: seconds since it joined its line; None outside lines and claims.
        position: in its line, from 1; None if it is in no line.
        line_tasks: tasks in its line.
        limits: what it needs: each limit and key, with its cost in units.
        blocked_by: the limit, and its key or None, at which its line waits.
        starts_in: seconds until it is expected to start; None if that is not known.
        pauses: of its limits and keys.
        worker: the worker that has claimed it.
        lease: seconds until the worker counts as lost if it does not renew its lease.
        expires: when it expires; None for never.
    """

    task_id: str
    location: str
    queue: str | None = None
    task: str | None = None
    waited: float | None = None
    position: int | None = None
    line_tasks: int | None = None
    limits: tuple[tuple[str, str | None, float], ...] = ()
    blocked_by: tuple[str, str | None] | None = None
    starts_in: float | None = None
    pauses: tuple[Pause, ...] = ()
    worker: str | None = None
    lease: float | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits in a line."""

    task_id: str
    task: str | None  #: its name; None if it cannot be read
    queue: str
    key: str | None  #: of the limit at which it waits
    waited: float  #: seconds


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Tasks that wait at a limit, some at a time.

    Attributes:
        waiting: how many wait in all.
        tasks: line by line, in the order of each line.
        next: how many to pass over for the next page; None if this is the last one.
    """

    waiting: int
    tasks: tuple[WaitingTask, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change of limits would mean for the tasks that wait for them.

    Attributes:
        waiting: tasks in lines that need one of the limits, wherever these lines wait.
        before: when the last of them starts without the change; None if more than 2,000 lines wait.
        after: the same with the change.
    """

    waiting: int
    before: Forecast | None
    after: Forecast | None


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log of changes.

    Attributes:
        id: of the entry.
        at: when.
        action: such as ``"set"``, ``"unset"``, ``"end"``, ``"code"``, ``"rules"``, ``"weight"``,
            ``"pause"``, ``"resume"``, ``"reset"``, ``"drop"``, ``"move"``, ``"drain"``.
        limit: name of the limit, and the key behind a colon if it is of one key.
        old, new: as text: the limits, the weight, the microseconds of a pause, or how many tasks
            were taken out of lines; empty for none.
        author: who, and why; None if that is not known.
    """

    id: str
    at: datetime
    action: str
    limit: str
    old: str
    new: str
    author: Author | None
