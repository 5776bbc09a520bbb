"""Keeps the rules file of a worker and the rules on the server the same, if the file is the newest.

If workers have different files, the newest one is in force, and all workers use its routes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import RulesError, StoreError
from celery_throttle.limits.rules.rules import Rules, diff_rules
from celery_throttle.operations.plan import Plan, PlanContext
from celery_throttle.operations.rules import (
    Applied,
    FileRules,
    RulesVersion,
    pack_report,
    report_rules,
)
from celery_throttle.tasks.app_rules import AppRules
from celery_throttle.worker import tuning
from celery_throttle.worker.error_log import ErrorLog

logger = get_logger(__name__)

#: Changes of the rules that one log line lists.
_LOGGED_CHANGES = 10


@dataclass(eq=False, repr=False)
class RulesWatch:
    """Watches the rules file of one worker. Thread-safe; starts no thread."""

    app_rules: AppRules
    context: PlanContext  #: of the home shard, which has the newest file
    run_plan: Callable[[Plan[Any]], Any]
    apply: Callable[..., Plan[Applied]]  #: puts a file in force in all shards
    worker: str

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._polled_at: float | None = None
        self._stopped = False
        self._in_use: Rules | None = None
        #: The last file that the server has decided about, and why it was refused, if it was.
        self._offered: FileRules | None = None
        self._refusal = ""
        self._error_log = ErrorLog(
            "The rules on the server cannot be read or changed; this worker uses those it knows."
        )

    def poll(self) -> None:
        """Read the file, put it in force if it has changed, and adopt the rules in force.

        Does nothing if the last poll was less than five seconds ago.
        """
        with self._lock:
            now, last = time.monotonic(), self._polled_at
            if self._stopped or (last is not None and now - last < tuning.RULES_POLL_SECONDS):
                return
            self._polled_at = now
            self.app_rules.poll()
            self._synchronize()

    def refresh(self) -> None:
        """Adopt the rules in force, because a task needs a limit that the server does not know.

        A newer file may have removed the limit and the route of the task since the last poll.
        """
        with self._lock:
            self._synchronize()

    def stop(self) -> None:
        """Withdraw the report of this worker, which ends."""
        with self._lock:
            self._stopped = True
            self.app_rules.release()
            with suppress(StoreError, RulesError):  # then the report expires
                self._report(0)

    def _synchronize(self) -> None:
        file = self.app_rules.of_file
        try:
            version, rules = self._report(tuning.RULES_REPORT_SECONDS)
            if file is not None and self._must_offer(file, version) and self._offer(file):
                self._use(file.rules, file.source)
            elif version is not None and rules is not None:
                self._use(rules, version.source)
        except (StoreError, RulesError) as error:  # a later version may have written the rules
            self._error_log.log(error)
        if self._in_use is None:
            self.app_rules.use(file and file.rules)

    def _report(self, seconds: float) -> tuple[RulesVersion | None, Rules | None]:
        """Report the file of this worker; return the version and, if unknown here, the rules."""
        app_rules, known = self.app_rules, self._in_use.digest if self._in_use else ""
        error = str(app_rules.error or self._refusal)
        report = pack_report(app_rules.of_file, app_rules.path, error)
        plan = report_rules(self.context, self.worker, report, known, seconds)
        found: tuple[RulesVersion | None, Rules | None] = self.run_plan(plan)
        return found

    def _must_offer(self, file: FileRules, version: RulesVersion | None) -> bool:
        """Whether the file has not been offered, or a server has lost it since."""
        if file is not self._offered:
            return True
        if self._refusal:
            return False
        return version is None or (
            version.digest != file.rules.digest and version.modified < file.modified
        )

    def _offer(self, file: FileRules) -> bool:
        """Put the file in force, unless newer rules are; return whether it is."""
        # By the server's clock: a change that was seen here is newer than what is in force.
        is_new = self.app_rules.was_replaced and file is not self._offered
        self._refusal = ""
        try:
            applied = self.run_plan(self.apply(file, is_new=is_new))
        except RulesError as error:
            self._offered, self._refusal = file, str(error)
            logger.error("The rules stay as they are:\n%s", error)  # noqa: TRY400  # no mistake of ours
            return False
        if applied.accepted:
            file = self.app_rules.of_file = file._replace(modified=applied.modified)
        else:
            logger.warning(
                "%s is older than the rules in force, which stay: change the file, or apply it",
                file.source,
            )
        self._offered = file
        return bool(applied.accepted)

    def _use(self, rules: Rules, source: str) -> None:
        old, self._in_use = self._in_use or Rules(), rules
        self.app_rules.use(rules)
        changes = [*map(str, diff_rules(old, rules))]
        if changes:
            more = len(changes) - _LOGGED_CHANGES
            some = "; ".join(changes[:_LOGGED_CHANGES])
            logger.info(
                "Rules of %s in force: %s%s", source, some, f"; and {more} more" * (more > 0)
            )
