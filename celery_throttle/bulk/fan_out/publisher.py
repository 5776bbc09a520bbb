"""``throttle.fan_out(...)``: sends signatures to their lines, batch by batch.

Law at stake: *never lost*, and never twice. What a failed call did is unknown, so its batch is sent
again as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from uuid import uuid4

from celery.canvas import Signature
from celery.utils.log import get_logger

from celery_throttle.bulk.fan_out.enlist import FanOutOptions, LineEntry
from celery_throttle.bulk.fan_out.entries import EntryBuilder, read_signature
from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.bulk.fan_out.part_publisher import PartPublisher, add_note
from celery_throttle.bulk.fan_out.parts import FanOutParts
from celery_throttle.bulk.fan_out.unlimited import UnlimitedFanOut
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import ConfigurationError, FanOutError, LimitValueError, shown
from celery_throttle.limits.duration import Duration, check_duration
from celery_throttle.operations.author import Author
from celery_throttle.operations.fan_outs import pause_fan_out, resume_fan_out
from celery_throttle.tasks.app_limits import AppLimits

logger = get_logger(__name__)

_MAX_NAME_CHARACTERS = 200

#: The version of Celery's messages whose headers name the task.
_PROTOCOL = 2

#: The least number of seconds that the record of a fan-out is kept.
_MIN_KEEP_SECONDS = 60.0

#: Seconds after which a batch is sent though it is not full.
MAX_BATCH_SECONDS = 0.1

#: The most shards in which one fan-out has parts: each record has the names of all.
MAX_PARTS = 64

#: Seconds after which records are kept for longer: several times in the least ``keep``.
TOUCH_SECONDS = 15.0


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
        results = [read_signature(throttle.app, each).apply_async() for each in signatures]
        return UnlimitedFanOut(throttle, name, results)
    _check_app(throttle)
    options = FanOutOptions(name, max_waiting, keep)
    publisher = Publisher(throttle, options, is_unique=is_unique)
    handle = publisher.publish(signatures)
    logger.info(
        "Fan-out %s: %d tasks joined their lines, %d had been sent before%s",
        *(name, publisher.sent, publisher.processed - publisher.sent),
        "; then it was cancelled" if publisher.cancelled else "",
    )
    return handle


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
    is_text = isinstance(name, str) and name.isprintable()
    if not is_text or not 1 <= len(name) <= _MAX_NAME_CHARACTERS:
        raise FanOutError(
            f"{shown(name)} cannot name a fan-out; allowed: text of 1 to {_MAX_NAME_CHARACTERS} "
            "printable characters"
        )
    whole = isinstance(max_waiting, int) and not isinstance(max_waiting, bool)
    if max_waiting is not None and (not whole or max_waiting < 1):
        raise FanOutError(
            f"max_waiting is {shown(max_waiting)}; allowed: a whole number, 1 or more"
        )
    kept = 0.0
    with suppress(LimitValueError):
        kept = check_duration(keep, "keep")
    if kept < _MIN_KEEP_SECONDS:
        raise FanOutError(f"keep is {shown(keep)}; allowed: seconds, {_MIN_KEEP_SECONDS:g} or more")
    return kept


class Publisher:
    """Sends the tasks of one fan-out, each to the part in its shard.

    A part is opened before its first task is sent, see :meth:`_open`.
    """

    def __init__(self, throttle: AppLimits, options: FanOutOptions, *, is_unique: bool) -> None:
        self._throttle = throttle
        self._name = options.name
        self._options = options
        self._is_unique = is_unique  # no other process can have used the name
        self._entries = EntryBuilder(throttle, options.name)
        self._shards = throttle.parts_by_name
        self._parts: dict[str, PartPublisher] = {}
        self._touched_at = time.monotonic()
        shards = () if throttle.parts is None else throttle.parts.shards
        #: Shards from which a limit may have moved to another one of these.
        self._undivided = {str(shard) for shard in shards if shard.by_key is None}
        #: Those of them that have a part which another call has opened.
        self._earlier = set[str]()

    @property
    def processed(self) -> int:
        """The number of tasks that joined their lines, or had been sent before."""
        return sum(part.processed for part in self._parts.values())

    @property
    def sent(self) -> int:
        """The number of tasks that joined their lines."""
        return sum(part.sent for part in self._parts.values())

    @property
    def cancelled(self) -> bool:
        """Whether the fan-out has been cancelled meanwhile."""
        return any(part.cancelled for part in self._parts.values())

    def publish(self, signatures: Iterable[Signature]) -> FanOut:
        """Send all tasks, or those before the first that raises an error; return the handle."""
        if self._throttle.parts is None:  # before the first signature is read: that may take long
            self._open("")
        elif not self._is_unique:
            found = FanOutParts(self._throttle, self._name)
            if found.found:
                self._adopt(found)
        try:
            self._send_all(signatures)
        except BaseException:  # also Ctrl-C: what was read joins its line, if there is room
            self._send_rest()
            raise
        return FanOut(self._throttle, self._name, tuple(self._parts))

    def _send_all(self, signatures: Iterable[Signature]) -> None:
        """Send all tasks, or those before a cancel."""
        began = time.monotonic()
        for position, signature in enumerate(signatures):
            entry = self._entry(position, signature)
            part = self._parts.get(entry.destination.shard)
            if part is None:
                part = self._open(entry.destination.shard)
                if self.cancelled:
                    return
            batch = part.batch
            batch.add(entry)
            if batch.is_full() or time.monotonic() - began > MAX_BATCH_SECONDS:
                began = self._send_due(part, began)
                if self.cancelled:
                    return
        if not self._parts:  # there was no signature
            self._open(next(iter(self._shards)))
        self._finish()

    def _send_due(self, part: PartPublisher, began: float) -> float:
        """Send the full batch of a part, or what was added to all parts since ``began``.

        Returns the time from which on the next tasks are gathered.
        """
        is_due = time.monotonic() - began > MAX_BATCH_SECONDS
        for each in [*self._parts.values()] if is_due else [part]:
            if each.batch.entries:
                self._skip_sent(each)
                each.send()
        self._touch()
        return time.monotonic() if is_due or len(self._parts) == 1 else began

    def _finish(self) -> None:
        """Send the rest. The fan-out is closed when all its parts are."""
        for part in [*self._parts.values()]:  # others may be added
            self._skip_sent(part)
            part.send(closed=True)
        for part in [*self._parts.values()]:
            part.settle()

    def _send_rest(self) -> None:
        """After an error, send what was read. A further error is logged, as it is not the first."""
        for part in self._parts.values():
            if part.has_failed:
                continue
            try:
                self._skip_sent(part)
                part.send_rest()
            except Exception as error:  # noqa: BLE001  # as above
                logger.warning(
                    "Fan-out %s: not all tasks that were read have joined their lines: %r",
                    *(self._name, error),
                )

    def _skip_sent(self, part: PartPublisher) -> None:
        """Leave tasks out that were sent to another shard, in which their limit was before."""
        entries, sent = part.batch.entries, set[str]()
        if entries and entries[0].destination.shard in self._undivided:
            task_ids = [entry.task_id for entry in entries]
            for shard in self._earlier - {entries[0].destination.shard}:
                sent |= self._parts[shard].find_sent(task_ids)
        part.skip(sent)

    def _open(self, shard: str) -> PartPublisher:
        """Open the part in a shard.

        First its record is created, then all other parts learn of it, then it is read what has
        become of them meanwhile: another process may have paused or cancelled them before it could
        know of this part, or may have opened further parts.

        Raises:
            FanOutError: the fan-out was cancelled, or has a part that has expired, or too many.
        """
        if len(self._parts) >= MAX_PARTS:
            raise FanOutError(
                f"fan-out {shown(self._name)} has tasks in more than {MAX_PARTS} shards; allowed: "
                f"tasks whose limits are in {MAX_PARTS} shards at most"
            )
        part = self._parts[shard] = self._new_part(shard)
        if not shard:
            part.open(())
            self._check_uncancelled(part.cancelled)
            return part
        while True:
            names = sorted(self._parts)
            for each in sorted(self._parts.values(), key=lambda each: each is not part):
                each.open(names)
            known = names if self._is_unique else None
            found = FanOutParts(self._throttle, self._name, known)
            if found.shards <= {*names}:
                break
            self._adopt(found)
        if self.processed and any(each.progress.cancelled for each in found.found.values()):
            part.cancelled = True  # during this call, which ends without an error
            return part
        self._check(found)
        self._copy_pause(part.limits, found, shard)
        return part

    def _copy_pause(self, limits: AppLimits, found: FanOutParts, shard: str) -> None:
        """Pause a new part as long as others are paused, unless they are resumed meanwhile."""
        seconds = _longest_pause(found, shard)
        if not seconds:
            return
        author = Author.of(None, "paused in its other shards")
        lasts = None if seconds == inf else seconds
        pause = partial(pause_fan_out, limits.keys, self._name, lasts, author)
        resume = partial(resume_fan_out, limits.keys, self._name, author)
        retry_outage(lambda: limits.run_plan(pause()), f"Fan-out {self._name}")
        again = FanOutParts(self._throttle, self._name, found.shards)
        if not again.unreachable and not _longest_pause(again, shard):
            retry_outage(lambda: limits.run_plan(resume()), f"Fan-out {self._name}")

    def _adopt(self, found: FanOutParts) -> None:
        """Open the parts that were found, and those that are recorded and cannot be reached.

        Raises:
            StoreUnavailableError: this process does not have the shard of one.
            FanOutError: see :meth:`_open`.
        """
        self._check(found)
        new = found.shards - {*self._parts}
        self._earlier |= new & self._undivided
        for shard in new - self._shards.keys():
            raise found.unreachable[shard]
        for shard in new:
            self._parts[shard] = self._new_part(shard)
        for shard in new:
            self._parts[shard].open(sorted(self._parts))

    def _new_part(self, shard: str) -> PartPublisher:
        return PartPublisher(
            self._shards[shard],
            self._options,
            waiting_elsewhere=self._waiting_elsewhere,
            on_hold=self._on_hold,
        )

    def _check(self, found: FanOutParts) -> None:
        self._check_uncancelled(any(part.progress.cancelled for part in found.found.values()))
        if found.missing:
            raise FanOutError(
                f"the record of fan-out {shown(self._name)} in shard {min(found.missing)!r} has "
                "expired, or is lost: its tasks would be sent again; allowed: another name"
            )

    def _check_uncancelled(self, cancelled: bool) -> None:  # noqa: FBT001  # what was read
        if cancelled:
            raise FanOutError(f"fan-out {self._name!r} was cancelled; allowed: another name")

    def _waiting_elsewhere(self, part: PartPublisher) -> int:
        return sum(each.waiting for each in self._parts.values()) - part.waiting

    def _on_hold(self) -> None:
        """Read how many tasks wait in each part, as room for one is room for the others."""
        self._touch()
        if len(self._parts) > 1:
            found = FanOutParts(self._throttle, self._name, self._parts).found
            for shard, part in found.items():
                if shard not in self._parts:  # another process has opened it
                    self._parts[shard] = self._new_part(shard)
                self._parts[shard].waiting = part.progress.waiting

    def _touch(self) -> None:
        """Keep the records of parts of which no task waits, while others are still sent to."""
        if len(self._parts) > 1 and time.monotonic() - self._touched_at > TOUCH_SECONDS:
            for part in self._parts.values():
                part.open(())
            self._touched_at = time.monotonic()

    def _entry(self, position: int, signature: Signature) -> LineEntry:
        try:
            return self._entries.build(position, signature)
        except Exception as error:
            add_note(error, position, shown(signature))
            raise


def _longest_pause(found: FanOutParts, new: str) -> float:
    """Return for how many seconds parts are paused, apart from that in the shard ``new``."""
    pauses = [part.progress.paused for shard, part in found.found.items() if shard != new]
    return max(pauses, default=0.0)
