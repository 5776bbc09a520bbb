"""Reports of limits by a worker: log lines, and the records of the totals.

All of this runs in the thread of the heartbeats: a server that does not answer takes its time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.observe.status.fleet import find_stranded, note_ungated
from celery_throttle.observe.status.records import MIN_RECORD_SECONDS, record_totals
from celery_throttle.observe.status.stored import begin_once, estimate_wait, read_all, read_changes
from celery_throttle.observe.status_text import ungated_text
from celery_throttle.observe.text import describe_change, describe_limit, describe_waiting
from celery_throttle.observe.values import LimitStatus, Stranded, Ungated
from celery_throttle.operations.plan import Plan
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning

logger = get_logger(__name__)

#: Somewhat less than a minute: heartbeats do not come at even times.
_REPORT_SECONDS = tuning.STATUS_REPORT_SECONDS * 0.9

#: However many workers take turns, each finds stranded tasks itself every few minutes: its status
#: shows them.
_LONGEST_SHARE = 4.0


class StatusReport:
    """Reports the limits of one server, as one worker sees them.

    Args:
        throttle: the limits.
        names_in: returns those of some limits that are in the shard.
    """

    def __init__(
        self, throttle: AppLimits, names_in: Callable[[Iterable[str]], list[str]] = list
    ) -> None:
        self._names_in = names_in
        self._observer = throttle.observer
        self._run_plan: Callable[[Plan[Any]], Any] = throttle.run_plan
        #: Before the names of queues of the app's own broker.
        self._own_broker = throttle.qualify("")
        self.stranded: tuple[Stranded, ...] = ()
        self._ungated: set[Ungated] = set()
        self._logged_ungated: set[Ungated] = set()
        self._last_change: str | None = None
        #: Monotonic times; 0.0 before the first call of :meth:`run`.
        self._next_report_at = self._next_record_at = 0.0

    def begin(self) -> None:
        """Log the limits in force, where they come from, and their pauses."""
        try:
            statuses: list[LimitStatus] = self._run_plan(read_all(self._observer))
            changes = self._run_plan(read_changes(self._observer, 1))
        except StoreError as error:
            logger.info("The limits in force are not known yet: %s", error)
            return
        self._last_change = changes[0].id if changes else ""
        own = set(self._names_in(status.name for status in statuses))
        for status in (one for one in statuses if one.name in own):
            logger.info("Limit in force: %s", describe_limit(status))

    def report_ungated(self, task: str, *, releases_early: bool) -> None:
        """Report that a task with limits was started, but not at the gate. Thread-safe.

        Args:
            task: the name of the task.
            releases_early: whether it may still run, but its slots are released.
        """
        ungated = Ungated(task, releases_early)
        self._ungated.add(ungated)
        if ungated not in self._logged_ungated:
            self._logged_ungated.add(ungated)
            logger.warning("Ungated task %s", ungated_text(ungated))

    def run(self, newest_change: str, workers: int) -> None:
        """Report what has happened since the last call. Raises no error of the server.

        Args:
            newest_change: id of the newest change of a limit; empty: there is none.
            workers: the number of live workers, which share the work.
        """
        # With a random part, as many workers may have started at one time.
        share = max(1.0, random.uniform(0.5, 1.5) * workers / tuning.REPORTING_WORKERS)
        if not self._next_record_at:
            first_at = time.monotonic() + MIN_RECORD_SECONDS * (share - 1.0)
            self._next_record_at = self._next_report_at = first_at
        try:
            if time.monotonic() >= self._next_record_at:
                self._next_record_at = time.monotonic() + MIN_RECORD_SECONDS * share
                self._run_plan(record_totals(self._observer))  # the first worker does
            if self._ungated:
                ungated, self._ungated = self._ungated, set()
                self._run_plan(note_ungated(self._observer, tuple(ungated)))
            if newest_change != self._last_change:
                self._log_changes()
            if time.monotonic() >= self._next_report_at:
                self._next_report_at = time.monotonic() + _REPORT_SECONDS * min(
                    share, _LONGEST_SHARE
                )
                self.stranded = self._run_plan(find_stranded(self._observer))
                self._warn_of_stranded()
                self._log_waiting()
        except StoreError as error:
            logger.debug("Limits cannot be reported: %s", error)

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows."""
        return {"stranded": [asdict(one) for one in self.stranded]}

    def _log_changes(self) -> None:
        """Log the changes of limits since the last call."""
        changes = self._run_plan(read_changes(self._observer, tuning.LOGGED_CHANGES))
        if self._last_change is not None:
            new = takewhile(lambda change: change.id != self._last_change, changes)
            for change in reversed([*new]):
                logger.info("Limit changed: %s", describe_change(change))
        self._last_change = changes[0].id if changes else ""

    def _warn_of_stranded(self) -> None:
        """Warn of queues with waiting tasks that no live worker consumes: one worker does."""
        for one in self.stranded:
            what = f"stranded {one.queue}"
            if one.queue and self._run_plan(begin_once(self._observer, what, _REPORT_SECONDS)):
                logger.warning(
                    "%d tasks wait in queue %s, which no live worker consumes: start one that "
                    "does, or purge the queue",
                    one.tasks,
                    one.queue.removeprefix(self._own_broker),
                )

    def _log_waiting(self) -> None:
        """Log how many tasks wait at each limit: one worker does, and only if that has changed."""
        lines = [
            describe_waiting(status, self._run_plan(estimate_wait(self._observer, status)))
            for status in self._run_plan(read_all(self._observer))
            if status.waiting or status.pauses
        ]
        digest = blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
        # The same lines are logged once an hour at most.
        same = f"report {digest}", tuning.SAME_REPORT_SECONDS
        if lines and self._run_plan(begin_once(self._observer, "report", _REPORT_SECONDS, same)):
            for line in lines:
                logger.info("%s", line)
