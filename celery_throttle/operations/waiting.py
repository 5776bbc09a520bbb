"""Calls of workers for tasks that wait: park them, claim them, requeue claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import chain
from typing import Any

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import Plan, PlanContext
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, pack_doubles, script


class Mode(IntEnum):
    """What may become of a task that is parked."""

    PARK = 0  #: it joins its line
    MAY_RUN = 1  #: it is admitted if nothing waits and its limits have room, or else joins its line
    JUST_SENT = 2  #: it joins its line if tasks wait there, and else nothing is done
    NO_PROCESS = 3  #: nothing is done where ``MAY_RUN`` admits; it joins its line where that does


class Kept(IntEnum):
    """Which tasks of a line may wait; the others end as revoked."""

    ALL = 0
    NEWEST = 1  #: of the tasks with one name, that which joined last
    FIRST = 2  #: of the tasks with one name, that which joined first

    def for_task(self, *, returns: bool) -> Kept:
        """Return how a task joins: one that ``returns`` to its line replaces no other one."""
        return Kept.FIRST if returns and self is Kept.NEWEST else self


class ClaimStatus(Enum):
    """How far the task of a claim has come in its worker; ``requeue.lua`` knows the first three."""

    HELD = "held"  # it waits for its start
    DELIVERED = "delivered"  # Celery has the message
    STARTED = "started"  # the pool has the task, or may have had it
    #: The task left this worker: requeued, or into quarantine. Nothing in this worker may run it.
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class ParkRequest:
    """The request to park one task."""

    task_id: str
    packed: bytes  #: its message
    requirement: Requirement
    rank: int = 0  #: of its priority, 0 to 255, the lowest first
    expires: int = 0  #: microseconds since the epoch; 0 for never
    max_wait: float | None = None  #: seconds; None for any time
    mode: Mode = Mode.PARK
    settles: bool = False  #: whether its run settles what is taken for it
    identity: str = ""  #: of its message, which is remembered
    redelivered: bool = False  #: whether the broker delivered the message before
    holder: str = ""  #: of the slots that it would take

    def arguments(self) -> tuple[Argument, ...]:
        """Return its arguments of ``park.lua``."""
        numbers = pack_doubles(
            self.rank,
            self.expires,
            -1 if self.max_wait is None else to_us(self.max_wait),
            self.redelivered,
            self.mode,
            self.settles,
            *self.requirement.costs,
        )
        return self.task_id, self.identity, self.packed, self.holder, numbers


@dataclass(frozen=True, slots=True)
class LineTasks:
    """Tasks that are to join one line: all have the same limits and keys."""

    queue: str  #: named with its broker
    tasks: Sequence[ParkRequest]
    temporary: bool = False  #: whether the broker deletes the queue with its last consumer
    kept: Kept = Kept.ALL
    task_name: str = ""  #: of all the tasks, needed if not all are kept

    @property
    def refs(self) -> Sequence[LimitRef]:
        """The limits and keys of the tasks."""
        return self.tasks[0].requirement.refs

    def head(self) -> tuple[int, ...]:
        """Return the numbers with which its arguments of ``park.lua`` begin."""
        return len(self.tasks), len(self.refs), self.temporary, self.kept

    def names(self, keys: Keys) -> list[str]:
        """Return its keys of ``park.lua``."""
        line = keys.line(self.queue, self.refs, self.task_name if self.kept else "")
        names = [line, *keys.queue(self.queue)]
        for ref in self.refs:
            names += keys.line_limit_keys(self.queue, ref)
        if self.temporary:
            names.append(keys.temporary_queues)
        if self.kept:
            names += keys.surplus(self.queue, self.refs, self.task_name)
        return names

    def arguments(self, keys: Keys) -> list[Argument]:
        """Return its arguments of ``park.lua``."""
        args: list[Argument] = []
        for ref in self.refs:
            args += (ref.name, keys.field(ref))
        for task in self.tasks:
            args += task.arguments()
        return args


def park_call(
    keys: Keys,
    lines: Sequence[LineTasks],
    *,
    remember: float = 1.0,
    lease: float = 0.0,
    horizon: float = 0.0,
    acknowledged: Sequence[str] = (),
    now: Argument = "",
) -> Call:
    """Return the call that parks tasks, or admits some of them; see ``park.lua``.

    Identities are remembered for ``remember`` seconds. ``lease``: of slots, in seconds;
    ``horizon``: how far ahead a start may be booked, in seconds. ``now``: microseconds; the
    server's time by default.
    """
    heads = chain.from_iterable(line.head() for line in lines)
    counts = len(acknowledged), len(lines)
    head = pack_doubles(to_us(remember), to_us(lease), *counts, to_us(horizon), *heads)
    names = [keys.limits, keys.unacknowledged]
    args: list[Argument] = [now, head, *acknowledged]
    for line in lines:
        names += line.names(keys)
        args += line.arguments(keys)
    return Call(script("park"), [*names, keys.totals()], args)


def park(
    context: PlanContext,
    lines: Sequence[LineTasks],
    *,
    remember: float = 1.0,
    lease: float = 0.0,
    horizon: float = 0.0,
    acknowledged: Sequence[str] = (),
) -> Plan[Sequence[Sequence[Any]]]:
    """Run a :func:`park_call`; return the replies.

    Limits of a single line that the server lacks are registered. If there are several lines, an
    error of one would be an error of tasks that have joined another one.
    """
    times = {"remember": remember, "lease": lease, "horizon": horizon}
    call = park_call(context.keys, lines, acknowledged=acknowledged, **times)
    if len(lines) == 1:
        return (yield from call_registered(context, call, lines[0].refs))  # type: ignore[no-any-return]  # a reply has no type
    return (yield call)  # type: ignore[no-any-return]  # as above


def claim_call(
    keys: Keys,
    worker: str,
    queue_keys: Iterable[str],
    tokens: range,
    *,
    lease: float,
    poll_interval: float = 1.0,
    free: int | None = None,
    horizon: float = 0.0,
    soon_free_horizon: float = 0.0,
    settled: Sequence[int] = (),
    releases: Sequence[tuple[str, str, str]] = (),
    acknowledged: Sequence[str] = (),
    registered: bool = False,
    now: Argument = "",
) -> Call:
    """Return the call that renews a worker's lease, reports what has ended, and claims tasks.

    ``lease``, ``poll_interval`` and the horizons are seconds. ``queue_keys`` has four keys of each
    queue, ``tokens`` one token for each task to claim. Of these tasks ``free`` have free processes,
    by default all; the others will have one soon. ``settled`` are tokens of claims whose messages
    are acknowledged, negative for those that did not start; ``releases`` entries, waiting-lists and
    holder of each slot; ``acknowledged`` identities of messages. See ``claim.lua``.
    """
    names = [keys.limits, keys.unacknowledged, keys.workers, keys.claims(worker)]
    names += (*queue_keys, keys.totals())
    numbers = pack_doubles(
        to_us(lease),
        len(tokens),
        to_us(horizon),
        tokens.start,
        to_us(poll_interval),
        len(settled),
        len(releases),
        registered,
        len(tokens) if free is None else free,
        to_us(soon_free_horizon),
    )
    args: list[Argument] = [now, worker, keys.wakeup_channel(worker), numbers]
    args += (*settled, *chain.from_iterable(releases), *acknowledged)
    return Call(script("claim"), names, args)


def withdraw_call(
    keys: Keys,
    worker: str,
    queue_keys: Iterable[str],
    first_token: int,
    ids: Sequence[Argument],
    *,
    lease: float,
    now: Argument = "",
) -> Call:
    """Return the call that claims the tasks with these ids without quota; ``lease`` in seconds."""
    names = [keys.workers, keys.claims(worker), *queue_keys, keys.totals()]
    return Call(script("withdraw"), names, [now, worker, to_us(lease), first_token, *ids])


def requeue_call(
    keys: Keys,
    worker: str,
    which: str,
    limit: int,
    returned: Sequence[tuple[int, ClaimStatus]] = (),
    *,
    now: Argument = "",
) -> Call:
    """Return the call that requeues claims: ``which`` is "own", or "dead" for all of the worker.

    ``returned``: of its own claims, the token of each and how far its task has come. The units of a
    task that was not started are given back, if a limit takes more than a second to give others.
    """
    names = [keys.limits, keys.workers, keys.claims(worker), keys.totals()]
    listed = chain.from_iterable((token, status.value) for token, status in returned)
    return Call(script("requeue"), names, [now, worker, which, limit, *listed])


def list_claims_call(keys: Keys, worker: str) -> Call:
    """Return the call that lists the tokens of a worker's claims."""
    return Call(script("list_claims"), [keys.claims(worker)], [])


def quarantine_call(keys: Keys, worker: str, token: int, label: str, *, now: Argument = "") -> Call:
    """Return the call that leaves a claimed task, not started, to a worker with its code."""
    names = [keys.limits, keys.workers, keys.claims(worker), keys.quarantine, keys.totals()]
    return Call(script("quarantine"), names, [now, worker, token, label])
