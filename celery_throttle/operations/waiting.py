"""Calls of workers for tasks that wait: park them, claim them, requeue claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.requirement import Requirement
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, pack_doubles, script


class WaitingTask(NamedTuple):
    """A task to be parked."""

    task_id: str
    queue: str  #: of its message, named with its broker
    rank: int  #: of its priority, 0 to 255, the lowest first
    expires: int  #: microseconds since the epoch; 0 for never
    max_wait: float | None  #: seconds; None for any time
    packed: bytes  #: its message
    settles: bool = False  #: whether its run settles what is taken for it


def park_call(
    keys: Keys,
    task: WaitingTask,
    requirement: Requirement,
    mode: str,
    *,
    identity: str = "",
    redelivered: bool = False,
    remember: float = 1.0,
    holder: str = "",
    lease: float = 0.0,
    acknowledged: Sequence[str] = (),
    temporary: bool = False,
    now: Argument = "",
) -> Call:
    """Return the call that parks one task, or admits it; for the ``mode`` see ``park.lua``.

    The ``identity`` of the message is stored for ``remember`` seconds. ``holder`` and ``lease``
    (seconds) are of the slots that the task would take. ``temporary``: whether the broker deletes
    the queue with its last consumer. ``now``: microseconds; the server's time by default.
    """
    queue = task.queue
    names = [
        keys.limits,
        keys.unacknowledged,
        keys.line(queue, requirement.refs),
        *keys.queue(queue),
    ]
    args: list[Argument] = [
        now,
        task.task_id,
        identity,
        int(redelivered),
        mode,
        int(task.settles),
        task.packed,
        holder,
        pack_doubles(
            task.rank,
            task.expires,
            -1 if task.max_wait is None else to_us(task.max_wait),
            to_us(remember),
            to_us(lease),
            *requirement.costs,
        ),
    ]
    for ref in requirement.refs:
        names += keys.line_limit_keys(queue, ref)
        args += (ref.name, keys.field(ref))
    if temporary:
        names.append(keys.temporary_queues)
    names.append(keys.totals())
    return Call(script("park"), names, [*args, *acknowledged])


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
    ids: Sequence[str],
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
    tokens: Sequence[int] = (),
    *,
    now: Argument = "",
) -> Call:
    """Return the call that requeues claims: ``which`` is "own", by token, or "dead" for all."""
    names = [keys.workers, keys.claims(worker), keys.totals()]
    return Call(script("requeue"), names, [now, worker, which, limit, *tokens])


def list_claims_call(keys: Keys, worker: str) -> Call:
    """Return the call that lists the tokens of a worker's claims."""
    return Call(script("list_claims"), [keys.claims(worker)], [])


def quarantine_call(keys: Keys, worker: str, token: int, label: str, *, now: Argument = "") -> Call:
    """Return the call that leaves a claimed task to a worker with the code for it."""
    names = [keys.workers, keys.claims(worker), keys.quarantine]
    return Call(script("quarantine"), names, [now, worker, token, label])
