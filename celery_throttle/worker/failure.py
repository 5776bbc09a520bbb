"""Fails a task in the worker, without a process."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo


def fail(request: Any, error: Exception) -> None:
    """Fail a task at once, as if its process had been lost: errbacks, chord and signal."""
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo(), return_ok=False)
    request.acknowledge()
