"""Looks up the limits of keys by the functions of the code; see ``LimitByKey``.

The functions run in threads, since they may wait for a database. A task whose key is new waits for
its function in this worker, as a delayed task; other tasks go on. What a function has returned is
in force for the key on the server, for all workers. Keys that tasks use, or wait for, are looked up
again now and then; others are forgotten, here and on the server.

Laws at stake here: *never over* (no task of a key starts before the limit of the key is in force)
and *never in the way* (a slow function delays only the tasks of its limits).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import (
    LimitFunctionError,
    StoreError,
    ThrottleError,
    function_name,
    raised_error,
)
from celery_throttle.limits.key import LimitRef, ref_text
from celery_throttle.limits.requirement import LimitByKey, Requirement
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.operations.define import read_definitions
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker.hooks.timers import Timers

logger = get_logger(__name__)

#: Functions that run at the same time.
_THREADS = 4

#: Seconds for which an error of a function fails tasks of its key without another call.
_ERROR_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Key:
    """What this worker knows of one key."""

    is_known: bool = False  #: whether its limit is in force
    is_running: bool = False  #: whether a thread looks it up, or will
    looked_up: float = 0.0  #: when it was looked up last, or failed
    used: float = 0.0  #: when a task came to the gate that needs it
    #: With which tasks of the key fail or are delayed; None if the last call succeeded.
    error: Exception | None = None
    #: Those that wait for it, each once, however often it has come to the gate.
    requests: dict[Any, None] = field(default_factory=dict)


class KeyLookups:
    """The looked-up keys of one shard of a worker.

    Args:
        throttle: the limits.
        timers: calls back in the worker's loop.
        readmit: brings a request to the gate at once, if it is still delayed.
    """

    def __init__(self, throttle: AppLimits, timers: Timers, readmit: Callable[[Any], None]) -> None:
        self._throttle = throttle
        self._timers = timers
        self._readmit = readmit
        #: By the name of the limit. Empty for most apps: then a task costs nothing here.
        self.by_name = throttle.limits_by_key
        self._keys: dict[LimitRef, _Key] = {}
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._has_threads = False

    def must_wait(self, request: Any, requirement: Requirement) -> bool:
        """Return whether a request must wait for a limit of its keys; it is readmitted then.

        Raises:
            LimitFunctionError: a function failed, and no earlier limit of the key is in force.
            OtherShardError: the limit is in another shard.
            StoreError: the server refuses the limit of the key, or cannot be reached.
        """
        must_wait = False
        for ref in requirement.refs:
            written = self.by_name.get(ref.name)
            if written is None or ref.key is None:
                continue
            now, key = time.monotonic(), self._keys.setdefault(ref, _Key())
            key.used = now
            if key.error and now - key.looked_up <= _ERROR_SECONDS and not key.is_known:
                raise key.error
            if not key.is_known or now - key.looked_up > written.refresh_seconds:
                self._start(ref, key)
            if not key.is_known:
                key.requests[request] = None
                must_wait = True
        return must_wait

    def are_known(self, requirement: Requirement) -> bool:
        """Return whether the limits of all its keys are in force, without a lookup."""
        return not self.by_name or all(
            (key := self._keys.get(ref)) is not None and key.is_known
            for ref in requirement.refs
            if ref.name in self.by_name and ref.key is not None
        )

    def note(self, ref: LimitRef) -> None:
        """A task came out of a line of a key: look the key up again if it is time."""
        written = self.by_name.get(ref.name)
        if written is not None and ref.key is not None:
            now, key = time.monotonic(), self._keys.setdefault(ref, _Key())
            key.used = now
            if not key.looked_up or now - key.looked_up > written.refresh_seconds:
                self._start(ref, key)

    def forget(self) -> None:
        """Look up all keys again: the server may have lost their limits."""
        for key in self._keys.values():
            key.is_known = False

    def _start(self, ref: LimitRef, key: _Key) -> None:
        if key.is_running:
            return
        if not self._has_threads:
            self._has_threads = True
            for _ in range(_THREADS):
                threading.Thread(target=self._run_jobs, daemon=True).start()
        key.is_running = True
        is_used = key.used > key.looked_up
        self._jobs.put(lambda: self._look_up(ref, self.by_name[ref.name], is_used=is_used))

    def _run_jobs(self) -> None:
        while True:
            self._jobs.get()()

    # In a thread.

    def _look_up(self, ref: LimitRef, written: LimitByKey, *, is_used: bool) -> None:
        """Call the function of a key, and put what it returns in force."""
        error: Exception | None = None
        is_known = False
        try:
            if is_used or self._throttle[ref].status().waiting:
                self._throttle.look_up_key(ref, written)
                is_known = True
        except OtherShardError as wrong:
            error = wrong
        except StoreError as wrong:  # the gate finds out whether there is an outage
            error = StoreError(str(wrong))
        except ThrottleError as wrong:
            error, is_known = LimitFunctionError(str(wrong)), self._is_stored(ref)
        except Exception as wrong:  # noqa: BLE001  # the thread must not end
            error = LimitFunctionError(f"{type(wrong).__name__}: {wrong}")
        except BaseException as wrong:  # noqa: BLE001  # such as sys.exit(): for the same reason
            text = f"limit {ref.name!r}: the function {function_name(written.function)!r}, called"
            error = raised_error(f"{text} for {ref_text(ref)},", wrong)
            is_known = self._is_stored(ref)
        self._timers.call_soon(self._finish, ref, error, is_known)

    def _is_stored(self, ref: LimitRef) -> bool:
        """Whether the server has what an earlier call has returned."""
        fields = [self._throttle.keys.field(ref)]
        try:
            return bool(self._throttle.run_plan(read_definitions(self._throttle.plans, fields))[0])
        except StoreError:
            return False

    # In the worker's loop.

    def _finish(
        self,
        ref: LimitRef,
        error: Exception | None,
        is_known: bool,  # noqa: FBT001  # a callback
    ) -> None:
        key = self._keys[ref]
        key.is_running, key.looked_up = False, time.monotonic()
        if isinstance(error, OtherShardError):
            key.is_known = False
        elif error and (key.is_known or is_known):
            logger.warning("The limit of %s stays as it is: %s", ref_text(ref), error)
        elif not is_known and not error and not key.requests:  # nobody needs the key any more
            del self._keys[ref]
            return
        key.error, key.is_known = error, key.is_known or is_known
        requests, key.requests = key.requests, {}
        for request in requests:
            self._readmit(request)
        seconds = self.by_name[ref.name].refresh_seconds
        self._timers.call_after(seconds, self._refresh, (ref,))

    def _refresh(self, ref: LimitRef) -> None:
        key = self._keys.get(ref)
        if key is not None and time.monotonic() - key.looked_up >= 0.9 * (
            self.by_name[ref.name].refresh_seconds
        ):
            self._start(ref, key)
