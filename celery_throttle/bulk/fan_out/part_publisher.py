"""Sends the tasks of a fan-out that belong to one shard to their lines, batch by batch.

Law at stake here: *never lost*, and never twice. What a failed call did is unknown, so its batch is
sent again as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from celery_throttle.bulk.fan_out.enlist import EnlistBatch, EnlistReply, FanOutOptions, LineEntry
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import (
    KeysFullError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    shown,
)
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import read_call
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error
from celery_throttle.store.pending import PendingCalls
from celery_throttle.store.script import Call
from celery_throttle.tasks.app_limits import AppLimits

T = TypeVar("T")

#: Seconds between two tries to send a task that has no room, at least and at most.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0


class PartPublisher:
    """Sends the tasks of one part of a fan-out.

    ``waiting_elsewhere``: returns the number of tasks of the fan-out that wait in other shards;
    ``on_hold``: called while there is no room.

    Attributes:
        batch: the tasks that will be sent next.
        processed: tasks that joined their lines, or had been sent before.
        sent: tasks that joined their lines.
        waiting: tasks that wait, when that was last known.
        cancelled: whether the part has been cancelled.
        has_failed: whether a call has failed: no other tasks are sent.
    """

    def __init__(
        self,
        limits: AppLimits,
        options: FanOutOptions,
        *,
        waiting_elsewhere: Callable[[PartPublisher], int],
        on_hold: Callable[[], None],
    ) -> None:
        self.limits = limits
        self.processed = self.sent = self.waiting = 0
        self.cancelled = self.has_failed = False
        self._options = options
        self._name = options.name
        self._waiting_elsewhere, self._on_hold = waiting_elsewhere, on_hold
        self.batch = self._new_batch()
        self._in_flight: tuple[EnlistBatch, PendingCalls | None] | None = None
        self._waits = True

    def open(self, shards: Iterable[str]) -> None:
        """Create the record, unless it is there; ``shards``: those that have a part."""
        batch = self._new_batch()
        batch.shards = tuple(shards)
        self._complete(batch, None)

    def find_sent(self, task_ids: Sequence[str]) -> set[str]:
        """Return the tasks that were sent to this part."""
        tasks = partial(self.limits.keys.fan_out_tasks, self._name)
        call = read_call("", *(("HEXISTS", tasks(task_id), task_id) for task_id in task_ids))
        _, *found = self._retry(lambda: self.limits.store.run(call))
        return {task_id for task_id, is_sent in zip(task_ids, found, strict=True) if is_sent}

    def skip(self, task_ids: set[str]) -> None:
        """Leave tasks out that were added: they were sent to another part."""
        if task_ids:
            self.batch = self.batch.without(task_ids)
            self.processed += len(task_ids)

    def send(self, *, closed: bool = False) -> None:
        """Send the tasks that were added. ``closed``: they are the last ones."""
        self.settle()
        batch, self.batch = self.batch, self._new_batch()
        batch.closed = closed
        self._in_flight = batch, None  # if its call does not begin, settle() sends it
        has_begun = False
        with suppress(StoreUnavailableError):  # the next batch is built while the server works
            begun = self.limits.store.begin(self._call(batch), may_wait=True)
            self._in_flight, has_begun = (batch, begun), begun.connection is not None
        if not self.processed or not batch.is_full() or not has_begun:
            # The first reply says whether scripts or limits are missing. And if signatures come
            # slowly, the next batch may take long.
            self.settle()

    def send_rest(self) -> None:
        """Send the tasks that were added, as far as there is room for them now."""
        self._waits = False
        self.send()
        self.settle()

    def _new_batch(self) -> EnlistBatch:
        return EnlistBatch(self.limits.keys, self._options)

    def _call(self, batch: EnlistBatch) -> Call:
        return batch.call(self._waiting_elsewhere(self))

    def settle(self) -> None:
        """Wait until the whole batch in flight has joined its lines."""
        if self._in_flight is None:
            return
        batch, begun = self._in_flight
        self._in_flight = batch, None  # after Ctrl-C, send_rest() sends it again
        self._complete(batch, begun)
        self._in_flight = None

    def _complete(self, batch: EnlistBatch, begun: PendingCalls | None) -> None:
        """Send a batch until all its tasks have joined their lines."""
        try:
            self._send_parts(batch, begun)
        except Exception:
            self.has_failed = True
            raise

    def _send_parts(self, batch: EnlistBatch, begun: PendingCalls | None) -> None:
        part, tasks = batch, len(batch.entries)
        reply = self._first_reply(begun) or self._run(batch)
        while True:
            self.processed += reply.processed
            self.sent += reply.sent
            self.waiting = reply.waiting
            batch = batch.part(reply.processed)
            if reply.outcome == "cancelled" or (reply.outcome == "done" and not batch.entries):
                self.cancelled = reply.outcome == "cancelled"
                break
            if reply.outcome == "done":
                part = batch.part(0, 2 * len(part.entries))
            else:
                seconds = self._seconds_to_wait(batch.entries[0], reply)
                if not self._waits:
                    break
                time.sleep(seconds)
                self._on_hold()
                part = batch.part(0, 1)  # do not send the whole batch while there is no room
            reply = self._run(part)
        replicas = self.limits.settings.replicas
        if replicas and tasks:
            self._retry(lambda: self.limits.store.confirm(replicas))

    def _first_reply(self, begun: PendingCalls | None) -> EnlistReply | None:
        """Return the reply to a call; None if it is lost, or if the server lacks a limit."""
        try:
            reply = None if begun is None else self.limits.store.finish(begun)[0]
            if isinstance(reply, StoreError):
                raise reply
        except StoreUnavailableError:
            return None
        return None if reply is None or reply[0] == b"unknown" else EnlistReply.read(reply)

    def _run(self, batch: EnlistBatch) -> EnlistReply:
        """Run a call until it has a reply, and register limits that the server does not know."""
        limits, call, refs = self.limits, self._call(batch), batch.limits()
        reply = self._retry(lambda: limits.run_plan(call_registered(limits.plans, call, refs)))
        if reply[0] == b"unknown":
            raise unknown_limit_error(batch.ref_at(reply[1]).name, limits.limits)
        return EnlistReply.read(reply)

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_outage(action, f"Fan-out {self._name}")

    def _seconds_to_wait(self, entry: LineEntry, reply: EnlistReply) -> float:
        """Return when to send the next entry again. Raises if there will never be room for it."""
        wait = MIN_RETRY_SECONDS
        if reply.outcome == "never":
            index, burst = reply.details
            ref, cost = entry.destination.refs[index - 1], entry.costs[index - 1]
            raise _noted(cost_too_high_error(cost, ref, burst), entry)
        if reply.outcome == "crowded":
            wait_us, index, max_keys = reply.details
            ref = entry.destination.refs[index - 1]
            if wait_us < 0:
                raise _noted(KeysFullError(ref.name, ref.key, max_keys=max_keys), entry)
            wait = max(MIN_RETRY_SECONDS, wait_us / MICROSECONDS)
        return min(wait, MAX_RETRY_SECONDS)


def _noted(error: ThrottleError, entry: LineEntry) -> ThrottleError:
    add_note(error, entry.position, f"task_id {shown(entry.task_id)}")
    return error


def add_note(error: Exception, position: int, signature: str) -> None:
    """Add the position of the signature, from 0, to an error."""
    if sys.version_info >= (3, 11):
        error.add_note(f"of signature {position} of a fan-out: {signature}")
