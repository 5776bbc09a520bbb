"""Rounds of calls: a thread calls the servers of several shards, of which some may not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from celery.utils.log import get_logger

logger = get_logger(__name__)


def run_round(functions: Sequence[Callable[[], None]], patience: float) -> None:
    """Call functions, each of which calls the server of a shard, and return when all have ended.

    They are called one after the other, in this thread. When that has taken ``patience`` seconds,
    a server probably does not answer, and the functions that are left are called at the same time,
    in threads of their own. An error of one is logged: no other shard depends on it.
    """
    began = time.monotonic()
    for index, function in enumerate(functions):
        if time.monotonic() - began >= patience:
            _call_at_once(functions[index:])
            return
        _call(function)


def _call_at_once(functions: Sequence[Callable[[], None]]) -> None:
    threads = [
        threading.Thread(target=_call, args=(function,), name="throttle-late", daemon=True)
        for function in functions[1:]
    ]
    for thread in threads:
        thread.start()
    _call(functions[0])
    for thread in threads:
        thread.join()


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:
        logger.exception("The calls to one shard have failed; those to the others go on")
