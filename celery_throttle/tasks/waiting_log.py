"""Celery's log line of a task that steps into its line: the task waits, and is not "ignored"."""

from __future__ import annotations

import logging
import sys

#: Where Celery logs how a task has ended: in the process, thread or greenlet that ran it.
_LOGGER = logging.getLogger("celery.app.trace")


class _Description(logging.Filter):
    """Replaces Celery's description of an error that describes itself.

    Celery logs an error while that is being handled, but the line holds no more of it than text.
    """

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind = kind

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all lines pass."""
        error = sys.exc_info()[1]
        if isinstance(error, self.kind) and isinstance(record.args, dict):
            record.args["description"] = error.description  # type: ignore[attr-defined]  # see describe
        return True


def describe(kind: type[BaseException]) -> None:
    """Let the errors of a class, which have a ``description``, be logged by that from now on."""
    known = (getattr(one, "kind", None) for one in _LOGGER.filters)
    if kind not in known:
        _LOGGER.addFilter(_Description(kind))
