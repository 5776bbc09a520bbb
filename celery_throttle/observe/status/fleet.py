"""Plans that read which workers live, which queues they consume, and what nobody can start.

Also which rules file is in force, and which workers have another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.observe.observer import CONSUMED_SECONDS, Observer, at_time, read_keys
from celery_throttle.observe.values import (
    LimitStatus,
    RulesStatus,
    Stranded,
    Ungated,
    WorkerRules,
)
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.rules import RulesVersion
from celery_throttle.store.script import Call

#: Seconds for which a task counts as ungated after a worker has last seen such a start.
_UNGATED_SECONDS = 600.0

#: Before the name of an ungated task whose slots are released before its end.
_RELEASES_EARLY = "slots "

#: Workers of a shard, but not the home shard, above which each sends every other heartbeat only.
MANY_WORKERS = 32


def report_seconds(workers: int) -> float:
    """Return the seconds until each worker has reported a queue in which a first task waits."""
    return 15.0 if workers <= MANY_WORKERS else 25.0


class Fleet(NamedTuple):
    """Live workers, and the queues that they consume."""

    now: int  #: the server's time in microseconds
    workers: int
    quarantined: int  #: tasks
    consumed: dict[str, bool]  #: of queues with tasks that a worker has ever reported
    outage_seconds: float  #: that workers spent in outage mode, as they have reported
    ungated: tuple[Ungated, ...] = ()  #: tasks whose starts do not pass the gate

    @property
    def at(self) -> datetime:
        """The server's time."""
        return at_time(self.now)

    def consumes(self, queue: str, oldest: float) -> bool:
        """Return whether a live worker consumes a queue.

        ``oldest``: seconds that its oldest task has waited. Workers report queues with waiting
        tasks only, so a queue whose first task has just joined a line may not be reported yet.
        """
        is_new = self.workers > 0 and oldest < report_seconds(self.workers)
        return self.consumed.get(queue, is_new)


class WorkerStatus(NamedTuple):
    """A worker as the server knows it."""

    name: str  #: its hostname, the id of its process, and a random text
    #: Whether it has sent a heartbeat recently. If not, it was killed, or cannot reach the server.
    live: bool
    #: Since when it has sent no heartbeat; None if it is live, or if it has never sent one.
    lost: datetime | None
    claims: int  #: tasks that it has claimed from lines and not settled yet
    #: Seconds until these claims go back to their lines if it does not renew its lease.
    lease: float


def read_fleet(observer: Observer) -> Plan[Fleet]:
    """Return the live workers and the queues that they consume."""
    keys = observer.keys
    queue_sets = [keys.consumed_queues, keys.temporary_queues]
    names = [keys.membership, *queue_sets, keys.quarantine, keys.outages, keys.ungated]
    now, workers, quarantined, queues, outage_us, notes = yield observer.call(
        "read_fleet", names, to_us(CONSUMED_SECONDS)
    )
    head = keys.queue("").lines
    consumed: dict[str, bool] = {}
    for lines, flag in zip(queues[::2], queues[1::2], strict=True):
        name = lines.decode().removeprefix(head)
        # A worker that has just ended reported its queues a moment ago.
        consumed[name] = consumed.get(name, False) or (flag == b"1" and workers > 0)
    ungated = [
        Ungated(note.removeprefix(_RELEASES_EARLY), note.startswith(_RELEASES_EARLY))
        for note in map(bytes.decode, notes)
    ]
    ungated.sort(key=lambda one: one.task)
    return Fleet(int(now), workers, quarantined, consumed, outage_us / MICROSECONDS, (*ungated,))


def note_ungated(observer: Observer, tasks: Iterable[Ungated]) -> Plan[None]:
    """Note that a worker has seen starts of tasks that did not pass its gate."""
    notes = [_RELEASES_EARLY * one.releases_early + one.task for one in tasks]
    yield observer.call("note_ungated", [observer.keys.ungated], to_us(_UNGATED_SECONDS), *notes)


def is_consumed(observer: Observer, queue: str) -> Plan[bool]:
    """Return whether a live worker consumes a queue, whether tasks wait there or not."""
    keys = observer.keys
    now, (reported, newest) = yield from read_keys(
        observer,
        ("ZSCORE", keys.worker_queues, keys.queue(queue).lines),
        ("ZRANGE", keys.membership, -1, -1, "WITHSCORES"),
    )
    has_workers = bool(newest) and float(newest[1]) > now
    return has_workers and float(reported or 0) > now - to_us(CONSUMED_SECONDS)


def find_members(observer: Observer, workers: Sequence[str]) -> Plan[set[str]]:
    """Return those of some workers that have sent heartbeats to this server, and not ended."""
    command = "ZMSCORE", observer.keys.membership, *workers
    _, (ends,) = yield from read_keys(observer, command)
    return {worker for worker, end in zip(workers, ends, strict=True) if end is not None}


def read_workers(observer: Observer, most: int) -> Plan[list[WorkerStatus]]:
    """Return live workers, and those lost within 15 minutes or with claims, by name.

    At most so many of each kind.
    """
    keys = observer.keys
    names = [keys.membership, keys.workers, keys.claims("")]
    now, *rows = yield observer.call("list_workers", names, most)
    found = [
        WorkerStatus(
            name=name.decode(),
            live=lost_us == 0,
            lost=at_time(now - lost_us) if lost_us > 0 else None,
            claims=claims,
            lease=lease_us / MICROSECONDS,
        )
        for name, lost_us, claims, lease_us in rows
    ]
    return sorted(found, key=lambda worker: worker.name)


def find_stranded(
    observer: Observer,
    fleet: Fleet | None = None,
    waits: Mapping[str, float] | None = None,
    statuses: Sequence[LimitStatus] = (),
) -> Plan[tuple[Stranded, ...]]:
    """Return the waiting tasks that no live worker can start.

    ``waits``: seconds that the oldest task of a queue has waited, of queues with tasks that no
    worker may ever have reported. ``statuses``: limits, some of which may not be defined.
    """
    if fleet is None:
        fleet = yield from read_fleet(observer)
    waits = waits or {}
    found = [
        Stranded("", status.waiting, "limit", status.name)
        for status in statuses
        if status.waiting and not status.defined
    ]
    for queue in sorted(fleet.consumed.keys() | waits.keys()):
        if fleet.consumes(queue, waits.get(queue, 0.0)):
            continue
        _, (tasks,) = yield from read_keys(observer, ("HLEN", observer.keys.queue(queue).messages))
        if tasks:
            found.append(Stranded(queue, tasks, "queue", queue))
    if fleet.quarantined:
        found.append(Stranded("", fleet.quarantined, "task", ""))
    return tuple(found)


def read_rules_status(observer: Observer) -> Plan[RulesStatus | None]:
    """Return which rules are in force; None if no file was ever put in force or read."""
    packed, _, *reports = yield _rules_call(observer)
    version = RulesVersion.unpack(packed) if packed else None
    workers = []
    for worker, text in zip(reports[::2], reports[1::2], strict=True):
        about = json.loads(text)
        if about["error"] or about["digest"] != (version.digest if version else ""):
            workers.append(WorkerRules(worker.decode(), about["path"], about["error"] or None))
    if version is None:
        return RulesStatus(None, None, None, None, tuple(workers)) if workers else None
    times = at_time(version.modified), at_time(version.applied)
    return RulesStatus(version.source, *times, version.author, tuple(workers))


def read_rules_in_force(observer: Observer) -> Plan[Rules]:
    """Return the rules of the file that is in force; empty ones if none is."""
    packed, text, *_ = yield _rules_call(observer)
    if not packed:
        return Rules()
    return read_rules(text.decode(), RulesVersion.unpack(packed).source)


def _rules_call(observer: Observer) -> Call:
    keys = observer.keys
    return observer.call("read_rules", [keys.rules, keys.rules_files, keys.membership])
