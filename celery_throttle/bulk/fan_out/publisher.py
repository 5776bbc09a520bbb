"""Sends the signatures of a fan-out to their lines, batch by batch.

Law at stake: *never lost*, and never twice. What a failed call did is unknown, so its batch is sent
again as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from celery.canvas import Signature

from celery_throttle.bulk.fan_out.enlist import EnlistBatch, EnlistReply, LineEntry
from celery_throttle.bulk.fan_out.entries import EntryBuilder
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import (
    FanOutError,
    KeysFullError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    shown,
)
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.operations.define import register_missing
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error
from celery_throttle.store.client import PendingCall
from celery_throttle.store.script import Call
from celery_throttle.tasks.app_limits import AppLimits

#: Seconds between two tries to send a task that has no room, at least and at most.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0

#: Seconds after which a batch is sent though it is not full.
MAX_BATCH_SECONDS = 0.1


@dataclass(eq=False, repr=False)
class Publisher:
    """Sends the tasks of one fan-out."""

    throttle: AppLimits
    name: str
    max_waiting: int | None  #: its tasks that may wait; None for any number
    keep: float  #: seconds that its record is kept after its last task has left its line
    #: Called with the number of tasks processed, and of those that wait.
    report: Callable[[int, int], None] | None
    processed: int = 0  #: tasks that joined their lines, or had been sent before
    sent: int = 0  #: tasks that joined their lines
    cancelled: bool = False  #: whether the fan-out has been cancelled meanwhile

    def __post_init__(self) -> None:
        self._entries = EntryBuilder(self.throttle, self.name)
        self._in_flight: tuple[EnlistBatch, bool, PendingCall | None] | None = None

    def publish(self, signatures: Iterable[Signature]) -> None:
        """Send all tasks, or those before the first that raises an error."""
        self._send(EnlistBatch(self.throttle.keys, self.name))
        self._settle()  # creates the record, however long the first signature takes
        if self.cancelled:
            raise FanOutError(f"fan-out {self.name!r} was cancelled; allowed: another name")
        batch, began = EnlistBatch(self.throttle.keys, self.name), time.monotonic()
        try:
            for position, signature in enumerate(signatures):
                batch.add(self._entry(position, signature))
                if batch.is_full() or time.monotonic() - began > MAX_BATCH_SECONDS:
                    full, batch = batch, EnlistBatch(self.throttle.keys, self.name)
                    self._send(full)
                    if not self.processed or not full.is_full():
                        # The first reply says whether scripts or limits are missing. And if
                        # signatures come slowly, the next batch may take long.
                        self._settle()
                    began = time.monotonic()
                    if self.cancelled:
                        return
        except StoreError:  # after retries
            raise
        except BaseException:  # also Ctrl-C: what was read joins its line, if there is room
            self._send(batch)
            self._settle()
            raise
        self._send(batch, closed=True)
        self._settle()

    def _entry(self, position: int, signature: Signature) -> LineEntry:
        try:
            return self._entries.build(position, signature)
        except Exception as error:
            _add_note(error, position, shown(signature))
            raise

    def _send(self, batch: EnlistBatch, *, closed: bool = False) -> None:
        """Begin a call, so that the next batch is built while the server works."""
        self._settle()
        try:
            begun = self.throttle.store.begin(self._call(batch, closed=closed))
        except StoreUnavailableError:  # _settle() sends it again
            begun = None
        self._in_flight = batch, closed, begun

    def _call(self, batch: EnlistBatch, *, closed: bool) -> Call:
        return batch.call(max_waiting=self.max_waiting, keep=self.keep, closed=closed)

    def _settle(self) -> None:
        """Wait until the whole batch in flight has joined its lines."""
        if self._in_flight is None:
            return
        (batch, closed, begun), self._in_flight = self._in_flight, None
        part, registered, tasks = batch, False, len(batch.entries)
        reply = self._first_reply(begun) or self._run(batch, closed=closed)
        while True:
            self.processed += reply.processed
            self.sent += reply.sent
            if self.report is not None:
                self.report(self.processed, reply.waiting)
            batch = batch.part(reply.processed)
            if reply.outcome == "cancelled" or (reply.outcome == "done" and not batch.entries):
                self.cancelled = reply.outcome == "cancelled"
                break
            if reply.outcome == "done":
                part = batch.part(0, 2 * len(part.entries))
            elif reply.outcome == "unknown":
                self._register(part, reply, again=registered)
            else:
                self._wait_or_raise(batch.entries[0], reply)
                part = batch.part(0, 1)  # do not send the whole batch while there is no room
            registered = reply.outcome == "unknown"
            last = len(part.entries) == len(batch.entries)
            reply = self._run(part, closed=closed and last)
        replicas = self.throttle.settings.replicas
        if replicas and tasks:
            retry_outage(lambda: self.throttle.store.confirm(replicas), f"Fan-out {self.name}")

    def _first_reply(self, begun: PendingCall | None) -> EnlistReply | None:
        try:
            return None if begun is None else EnlistReply.read(self.throttle.store.finish(begun))
        except StoreUnavailableError:
            return None

    def _run(self, batch: EnlistBatch, *, closed: bool) -> EnlistReply:
        call = self._call(batch, closed=closed)
        return retry_outage(
            lambda: EnlistReply.read(self.throttle.store.run(call)), f"Fan-out {self.name}"
        )

    def _register(self, batch: EnlistBatch, reply: EnlistReply, *, again: bool) -> None:
        """Register limits that the server does not know."""
        index, now = reply.details
        if again:
            raise unknown_limit_error(batch.ref_at(index).name, self.throttle.limits)
        plans = self.throttle.plans
        retry_outage(
            lambda: self.throttle.run_plan(register_missing(plans, batch.limits(), now)),
            f"Fan-out {self.name}",
        )

    def _wait_or_raise(self, entry: LineEntry, reply: EnlistReply) -> None:
        """Wait for room for the next entry. Raises if there will never be any."""
        if reply.outcome == "never":
            index, burst = reply.details
            raise self._refused(
                cost_too_high_error(
                    entry.costs[index - 1], entry.destination.refs[index - 1], burst
                ),
                entry,
            )
        wait = MIN_RETRY_SECONDS
        if reply.outcome == "crowded":
            wait_us, index, max_keys = reply.details
            ref = entry.destination.refs[index - 1]
            if wait_us < 0:
                raise self._refused(KeysFullError(ref.name, ref.key, None, max_keys), entry)
            wait = max(MIN_RETRY_SECONDS, wait_us / MICROSECONDS)
        time.sleep(min(wait, MAX_RETRY_SECONDS))

    def _refused(self, error: ThrottleError, entry: LineEntry) -> ThrottleError:
        _add_note(error, self.processed, f"task_id {shown(entry.task_id)}")
        return error


def _add_note(error: Exception, position: int, signature: str) -> None:
    """Add the position of the signature, from 0, to an error."""
    if sys.version_info >= (3, 11):
        error.add_note(f"of signature {position} of a fan-out: {signature}")
