"""Makes Celery log that a task waits, not that it is "ignored", when it steps into its line."""

from __future__ import annotations

import logging
import sys

#: Logger by which Celery says how a task ended, in the process, thread or greenlet that ran it.
_LOGGER = logging.getLogger("celery.app.trace")


class _Description(logging.Filter):
    """Replaces Celery's description of an error that describes itself.

    Celery logs while it handles the error, but its record holds only the error's text.
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
    """From now on, log errors of a class by their attribute ``description``."""
    known = (getattr(one, "kind", None) for one in _LOGGER.filters)
    if kind not in known:
        _LOGGER.addFilter(_Description(kind))
