"""The call of ``claim.lua``: a worker renews its lease, reports, and claims due tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from celery_throttle.limits.duration import to_us
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script


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
    """Return the call.

    Args:
        keys: the names in Redis.
        worker: the name of the worker.
        queue_keys: the keys of the queues to claim from, four each.
        tokens: tokens for the tasks to claim, one each; empty to claim none.
        lease: seconds of the worker's lease.
        poll_interval: the most seconds until the next call.
        free: tasks for which processes are free; all of them by default. Processes for the others
            will be free soon.
        horizon: seconds by which the start of a task may be booked ahead.
        soon_free_horizon: the same for tasks whose processes will be free soon.
        settled: tokens of claims that are done; negative for those that did not start.
        releases: entries, waits and holder of each slot to release.
        acknowledged: identities of messages whose acknowledgement is certain.
        registered: whether the worker has registered its limits since its last call.
        now: microseconds since the epoch; the server's time by default.
    """
    names = [keys.limits, keys.unacknowledged, keys.workers, keys.claims(worker), *queue_keys]
    args: list[Argument] = [
        now,
        worker,
        keys.wakeup_channel(worker),
        to_us(lease),
        len(tokens),
        to_us(horizon),
        tokens.start,
        to_us(poll_interval),
        len(settled),
        len(releases),
        int(registered),
        len(tokens) if free is None else free,
        to_us(soon_free_horizon),
    ]
    args += (*settled, *chain.from_iterable(releases), *acknowledged)
    return Call(script("claim"), names, args)
