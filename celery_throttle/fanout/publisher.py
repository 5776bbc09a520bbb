"""Goes through the signatures of a fan-out and puts them into their lines, batch by batch.

Law at stake here: *never lost*, and never twice: what a call that failed has done is not known, so
its batch is sent again as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from celery_throttle.errors import (
    FanOutError,
    KeysFullError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    shown,
)
from celery_throttle.fanout.enlist import Batch, Entry, Reply
from celery_throttle.fanout.entries import Entries
from celery_throttle.fanout.retry import insist
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error

if TYPE_CHECKING:
    from celery.canvas import Signature

    from celery_throttle.app import Throttle
    from celery_throttle.store.client import PendingCall
    from celery_throttle.store.script import Call

#: Seconds between two looks whether more tasks may wait.
LOOK = 0.1

#: Seconds between two looks at most, whatever the server says.
LONGEST = 5.0

#: Seconds for which signatures are gathered, if they come slowly.
LATEST = 0.1


class Publisher:
    """Of one fan-out.

    Args:
        throttle: the app's limits.
        name: of the fan-out.
        max_waiting: its tasks that may wait; None for any number.
        keep: seconds for which what is known of it is kept after nothing waits.
        show: called with how many tasks were dealt with, and how many wait.

    Attributes:
        dealt: tasks that are in their lines, or were sent before.
        sent: of these, tasks that had not been sent before.
        cancelled: whether somebody has cancelled it meanwhile.
    """

    def __init__(
        self,
        throttle: Throttle,
        name: str,
        *,
        max_waiting: int | None,
        keep: float,
        show: Callable[[int, int], None] | None,
    ) -> None:
        self._throttle = throttle
        self._name = name
        self._max_waiting = max_waiting
        self._keep = keep
        self._show = show
        self.dealt = self.sent = 0
        self._entries = Entries(throttle, name)
        self._on_way: tuple[Batch, bool, PendingCall | None] | None = None
        self.cancelled = False

    def publish(self, signatures: Iterable[Signature]) -> None:
        """Put all into their lines, or those before the one that raises an error."""
        self._send(Batch(self._throttle.keys))
        self._settle()  # from now on its name is known, however long the first signature takes
        if self.cancelled:
            raise FanOutError(f"fan-out {self._name!r} was cancelled; allowed: another name")
        batch, began = Batch(self._throttle.keys), time.monotonic()
        try:
            for position, signature in enumerate(signatures):
                batch.add(self._entry(position, signature))
                if batch.is_full() or time.monotonic() - began > LATEST:
                    full, batch = batch, Batch(self._throttle.keys)
                    self._send(full)
                    if not self.dealt or not full.is_full():
                        # The server's first answer tells what it has to be told before all else;
                        # and where signatures come slowly, the next batch may be long in coming.
                        self._settle()
                    began = time.monotonic()
                    if self.cancelled:
                        return
        except StoreError:  # it was insisted enough
            raise
        except BaseException:  # Ctrl-C, too: what was taken is to be in its line, if it has room
            self._send(batch)
            self._settle()
            raise
        self._send(batch, closed=True)
        self._settle()

    def _entry(self, position: int, signature: Signature) -> Entry:
        try:
            return self._entries.entry(position, signature)
        except Exception as error:
            _note(error, position, shown(signature))
            raise

    def _send(self, batch: Batch, *, closed: bool = False) -> None:
        """While the server deals with this batch, the next is made."""
        self._settle()
        try:
            begun = self._throttle.store.begin(self._call(batch, closed=closed))
        except StoreUnavailableError:  # it is sent again when it is to be settled
            begun = None
        self._on_way = batch, closed, begun

    def _call(self, batch: Batch, *, closed: bool) -> Call:
        return batch.call(self._name, max_waiting=self._max_waiting, keep=self._keep, closed=closed)

    def _settle(self) -> None:
        """See to it that all of the batch on its way is in its lines."""
        if self._on_way is None:
            return
        (batch, closed, begun), self._on_way = self._on_way, None
        some, registered, tasks = batch, False, len(batch.entries)
        reply = self._first_reply(begun) or self._ask(batch, closed=closed)
        while True:
            self._count(reply)
            batch = batch.part(reply.dealt)
            if reply.outcome == "cancelled" or (reply.outcome == "done" and not batch.entries):
                self.cancelled = reply.outcome == "cancelled"
                break
            if reply.outcome == "done":
                some = batch.part(0, 2 * len(some.entries))
            elif reply.outcome == "unknown":
                self._register(some, reply, again=registered)
            else:
                self._wait_or_raise(batch.entries[0], reply)
                some = batch.part(0, 1)  # while there is no room, not all of it is sent again
            registered = reply.outcome == "unknown"
            last = len(some.entries) == len(batch.entries)
            reply = self._ask(some, closed=closed and last)
        replicas = self._throttle.settings.replicas
        if replicas and tasks:
            insist(lambda: self._throttle.store.confirm(replicas), self._name)

    def _count(self, reply: Reply) -> None:
        self.dealt += reply.dealt
        self.sent += reply.sent
        if self._show is not None:
            self._show(self.dealt, reply.waiting)

    def _first_reply(self, begun: PendingCall | None) -> Reply | None:
        try:
            return None if begun is None else Reply.read(self._throttle.store.finish(begun))
        except StoreUnavailableError:
            return None

    def _ask(self, batch: Batch, *, closed: bool) -> Reply:
        call = self._call(batch, closed=closed)
        return insist(lambda: Reply.read(self._throttle.store.run(call)), self._name)

    def _register(self, batch: Batch, reply: Reply, *, again: bool) -> None:
        """Tell the server what the code says of limits that it does not know."""
        index, now = reply.about
        refs = [ref for _, ref in batch.refs]
        if again:
            raise unknown_limit_error(refs[index - 1].name, self._throttle.limits)
        plans = self._throttle.plans
        insist(lambda: self._throttle.run_plan(plans.register_missing(refs, now)), self._name)

    def _wait_or_raise(self, entry: Entry, reply: Reply) -> None:
        """The next entry cannot join its line now, or never."""
        if reply.outcome == "never":
            index, burst = reply.about
            raise self._refused(
                cost_too_high_error(entry.costs[index - 1], entry.place.refs[index - 1], burst),
                entry,
            )
        wait = LOOK
        if reply.outcome == "crowded":
            wait_us, index, most = reply.about
            ref = entry.place.refs[index - 1]
            if wait_us < 0:
                raise self._refused(KeysFullError(ref.name, ref.key, None, most), entry)
            wait = max(LOOK, wait_us / MICROSECONDS)
        time.sleep(min(wait, LONGEST))

    def _refused(self, error: ThrottleError, entry: Entry) -> ThrottleError:
        _note(error, self.dealt, f"task_id {shown(entry.task_id)}")
        return error


def _note(error: Exception, position: int, what: str) -> None:
    """Tell which signature it was, in the order in which they came, the first being 0."""
    if sys.version_info >= (3, 11):
        error.add_note(f"of signature {position} of a fan-out: {what}")
