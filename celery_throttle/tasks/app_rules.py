"""The rules file of an app (``throttle_rules``), as one process uses it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from celery_throttle.errors import RulesError
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.file import RulesFile
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.operations.rules import FileRules

logger = logging.getLogger(__name__)

#: Time between two looks at the file, in a process that is no worker.
POLL_SECONDS = 5.0


class AppRules:
    """Reads the rules file, and has the rules that this process uses.

    A process reads the file when it needs the rules, at most every :data:`POLL_SECONDS`. The main
    process of a worker has a thread for that, which also adopts the rules that are in force on the
    server: they may be those of a newer file.

    Args:
        path: of the file.
        code: the limits of the code; None if they are wrong.
        check: raises RulesError for rules with which tasks of this process would fail.

    Attributes:
        of_file: the rules of the file; None if it has had none without mistakes.
        was_replaced: whether the file has changed since this process read it first. A change is
            new, even if an old file was moved to this path.
    """

    def __init__(
        self, path: str, code: Mapping[str, Limits] | None, check: Callable[[Rules], None]
    ) -> None:
        self.path = path
        self.of_file: FileRules | None = None
        self.was_replaced = False
        self._file = RulesFile(path, code, check)
        self._in_use: Rules | None = None
        self._polled_at: float | None = None
        self._watcher: int | None = None

    @property
    def error(self) -> RulesError | None:
        """Why the present content of the file is not used; None if it is."""
        return self._file.error

    def in_use(self) -> Rules | None:
        """Return the rules that this process uses; None if there are none."""
        if self._watcher != os.getpid():  # a forked process of a worker has no thread for this
            self._poll_sometimes()
        return self._in_use

    def use(self, rules: Rules | None) -> None:
        """Use these rules; from now on the caller polls."""
        self._watcher = os.getpid()
        self._in_use = rules

    def release(self) -> None:
        """Let this process read the file when it needs the rules: nobody polls any more."""
        self._watcher = None

    def poll(self) -> None:
        """Read the file. A mistake is logged once, and leaves the rules as they are."""
        is_first, self._polled_at = self._polled_at is None, time.monotonic()
        try:
            rules = self._file.poll()
        except RulesError as error:
            is_fork = self._watcher not in (None, os.getpid())  # of a worker, which logs it
            level = logging.DEBUG if is_fork else logging.ERROR
            logger.log(level, "The rules stay as they are, since their file is wrong:\n%s", error)
            return
        if rules is not None:
            self.was_replaced = not is_first
            modified = self._file.modified if is_first else time.time()
            self.of_file = FileRules(rules, self.path, to_us(modified))

    def _poll_sometimes(self) -> None:
        if self._polled_at is None or time.monotonic() - self._polled_at >= POLL_SECONDS:
            self.poll()
            if self.of_file is not None:
                self._in_use = self.of_file.rules
