"""``throttle.fan_out(...)``: sends signatures to their lines, batch by batch.

Law at stake: *never lost*, and never twice. What a failed call did is unknown, so its batch is sent
again as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import uuid4

from celery.canvas import Signature
from celery.utils.log import get_logger

from celery_throttle.bulk.fan_out.enlist import EnlistBatch, EnlistReply, LineEntry
from celery_throttle.bulk.fan_out.entries import EntryBuilder
from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.bulk.fan_out.location import RecordSearch, check_shard, part_of_limits
from celery_throttle.bulk.fan_out.unlimited import UnlimitedFanOut
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import (
    ConfigurationError,
    FanOutError,
    KeysFullError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    shown,
)
from celery_throttle.limits.duration import MICROSECONDS, Duration, check_duration
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error
from celery_throttle.store.client import PendingCall
from celery_throttle.tasks.app_limits import AppLimits

T = TypeVar("T")

logger = get_logger(__name__)

_MAX_NAME_CHARACTERS = 200

#: The version of Celery's messages whose headers name the task.
_PROTOCOL = 2

#: The least number of seconds that the record of a fan-out is kept.
_MIN_KEEP_SECONDS = 60.0

#: Seconds between two tries to send a task that has no room, at least and at most.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0

#: Seconds after which a batch is sent though it is not full.
MAX_BATCH_SECONDS = 0.1


def fan_out(
    throttle: AppLimits,
    signatures: Iterable[Signature],
    name: str | None,
    *,
    max_waiting: int | None,
    keep: float,
) -> FanOut:
    """See :meth:`celery_throttle.app.Throttle.fan_out`."""
    if isinstance(signatures, Mapping):
        raise FanOutError(f"{shown(signatures)} is one signature; allowed: an iterable of them")
    is_unique = name is None
    name = uuid4().hex if name is None else name
    keep = _check_arguments(name, max_waiting, keep)
    if not throttle.settings.enabled:
        return UnlimitedFanOut(throttle, name, [each.apply_async() for each in signatures])
    _check_app(throttle)
    publisher = Publisher(throttle, name, max_waiting, keep, is_unique=is_unique)
    publisher.begin()
    publisher.publish(signatures)
    logger.info(
        "Fan-out %s: %d tasks joined their lines, %d had been sent before%s",
        *(name, publisher.sent, publisher.processed - publisher.sent),
        "; then it was cancelled" if publisher.cancelled else "",
    )
    return FanOut(publisher.part, name)


def _check_app(throttle: AppLimits) -> None:
    if throttle.app.conf.task_always_eager:
        raise ConfigurationError(
            "task_always_eager is set: tasks run at once in this process, and cannot wait in a line"
        )
    if throttle.settings.waiting == "broker":
        raise ConfigurationError(
            "throttle_waiting is 'broker': messages stay out of Redis, so there are no lines"
        )
    if throttle.app.conf.task_protocol != _PROTOCOL:
        raise ConfigurationError(
            f"task_protocol is {throttle.app.conf.task_protocol}; fan-outs need {_PROTOCOL}"
        )


def _check_arguments(name: str, max_waiting: int | None, keep: Duration) -> float:
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise FanOutError(
            f"{shown(name)} cannot name a fan-out; allowed: text of 1 to {_MAX_NAME_CHARACTERS} "
            "characters"
        )
    whole = isinstance(max_waiting, int) and not isinstance(max_waiting, bool)
    if max_waiting is not None and (not whole or max_waiting < 1):
        raise FanOutError(
            f"max_waiting is {shown(max_waiting)}; allowed: a whole number, 1 or more"
        )
    kept = check_duration(keep, "keep")
    if kept < _MIN_KEEP_SECONDS:
        raise FanOutError(f"keep is {keep}; allowed: seconds, {_MIN_KEEP_SECONDS:g} or more")
    return kept


class Publisher:
    """Sends the tasks of one fan-out.

    Args:
        throttle: the limits of the app.
        name: that of the fan-out.
        max_waiting: its tasks that may wait; None for any number.
        keep: seconds that its record is kept after its last task has left its line.
        is_unique: whether no other process can have used the name.

    Attributes:
        part: the limits of the shard of the fan-out. Until that is known, those of the home shard.
        processed: tasks that joined their lines, or had been sent before.
        sent: tasks that joined their lines.
        cancelled: whether the fan-out has been cancelled meanwhile.
    """

    def __init__(
        self,
        throttle: AppLimits,
        name: str,
        max_waiting: int | None,
        keep: float,
        *,
        is_unique: bool,
    ) -> None:
        self.processed = self.sent = 0
        self.cancelled = False
        self.part = throttle.app_parts[0]
        self._throttle = throttle
        self._name = name
        self._options = name, max_waiting, keep
        self._is_unique = is_unique
        self._entries = EntryBuilder(throttle, name, self._find_part)
        self._batch, self._is_open = self._new_batch(), False
        self._in_flight: tuple[EnlistBatch, PendingCall | None] | None = None

    def begin(self) -> None:
        """Open the fan-out where it is, if it is anywhere.

        Without shards it is opened before the first signature is read, which may take long.
        """
        if self._throttle.parts is None:
            self._open(self.part)
        elif not self._is_unique:
            found = RecordSearch(self._throttle, self._name).found
            if found is not None:
                self._open(found)

    def publish(self, signatures: Iterable[Signature]) -> None:
        """Send all tasks, or those before the first that raises an error."""
        began = time.monotonic()
        try:
            for position, signature in enumerate(signatures):
                entry = self._entry(position, signature)
                self._batch.add(entry)
                if self._batch.is_full() or time.monotonic() - began > MAX_BATCH_SECONDS:
                    full, self._batch = self._batch, self._new_batch()
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
            self._send_rest()
            raise
        if not self._is_open:  # there was no signature
            self._open(self.part)
        self._batch.closed = True
        self._send_rest()

    def _send_rest(self) -> None:
        if self._is_open:
            self._send(self._batch)
            self._settle()

    def _find_part(self, refs: tuple[LimitRef, ...]) -> AppLimits:
        """Return the part of the shard of some limits. The first ones decide about the fan-out."""
        part = part_of_limits(self._throttle, refs)
        if not self._is_open:
            self._open(part)
            if not self._is_unique:
                self._check_others()
        check_shard(self._throttle, self._name, self.part, part)
        return part

    def _check_others(self) -> None:
        """Raise FanOutError if another process has begun the fan-out elsewhere meanwhile.

        Either this process finds the record of the other one, or the other one finds this record.
        """
        found = RecordSearch(self._throttle, self._name, besides=self.part).found
        if found is not None:
            check_shard(self._throttle, self._name, found, self.part)

    def _open(self, part: AppLimits) -> None:
        """Create the record of the fan-out in a shard, unless it is there."""
        self.part = part
        self._send(self._new_batch())
        self._settle()
        if self.cancelled:
            raise FanOutError(f"fan-out {self._name!r} was cancelled; allowed: another name")
        self._batch, self._is_open = self._new_batch(), True

    def _new_batch(self) -> EnlistBatch:
        return EnlistBatch(self.part.keys, *self._options)

    def _entry(self, position: int, signature: Signature) -> LineEntry:
        try:
            return self._entries.build(position, signature)
        except Exception as error:
            _add_note(error, position, shown(signature))
            raise

    def _send(self, batch: EnlistBatch) -> None:
        """Begin a call, so that the next batch is built while the server works."""
        self._settle()
        try:
            begun = self.part.store.begin(batch.call())
        except StoreUnavailableError:  # _settle() sends it again
            begun = None
        self._in_flight = batch, begun

    def _settle(self) -> None:
        """Wait until the whole batch in flight has joined its lines."""
        if self._in_flight is None:
            return
        (batch, begun), self._in_flight = self._in_flight, None
        part, tasks = batch, len(batch.entries)
        reply = self._first_reply(begun) or self._run(batch)
        while True:
            self.processed += reply.processed
            self.sent += reply.sent
            batch = batch.part(reply.processed)
            if reply.outcome == "cancelled" or (reply.outcome == "done" and not batch.entries):
                self.cancelled = reply.outcome == "cancelled"
                break
            if reply.outcome == "done":
                part = batch.part(0, 2 * len(part.entries))
            else:
                self._wait_or_raise(batch.entries[0], reply)
                part = batch.part(0, 1)  # do not send the whole batch while there is no room
            reply = self._run(part)
        replicas = self.part.settings.replicas
        if replicas and tasks:
            self._retry(lambda: self.part.store.confirm(replicas))

    def _first_reply(self, begun: PendingCall | None) -> EnlistReply | None:
        """Return the reply to a call; None if it is lost, or if the server lacks a limit."""
        try:
            reply = None if begun is None else self.part.store.finish(begun)
        except StoreUnavailableError:
            return None
        return None if reply is None or reply[0] == b"unknown" else EnlistReply.read(reply)

    def _run(self, batch: EnlistBatch) -> EnlistReply:
        """Run a call until it has a reply, and register limits that the server does not know."""
        throttle, call, limits = self.part, batch.call(), batch.limits()
        reply = self._retry(
            lambda: throttle.run_plan(call_registered(throttle.plans, call, limits))
        )
        if reply[0] == b"unknown":
            raise unknown_limit_error(batch.ref_at(reply[1]).name, throttle.limits)
        return EnlistReply.read(reply)

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_outage(action, f"Fan-out {self._name}")

    def _wait_or_raise(self, entry: LineEntry, reply: EnlistReply) -> None:
        """Wait for room for the next entry. Raises if there will never be any."""
        wait = MIN_RETRY_SECONDS
        if reply.outcome == "never":
            index, burst = reply.details
            ref, cost = entry.destination.refs[index - 1], entry.costs[index - 1]
            raise self._refused(cost_too_high_error(cost, ref, burst), entry)
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
