"""FanOut: a fan-out by its name, in any process: progress, pause, cancel, results, forecast."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import Any, TypeVar

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import TimeoutError as WaitedTooLong
from celery.result import AsyncResult

from celery_throttle.bulk.fan_out.parts import FanOutPart, FanOutParts
from celery_throttle.bulk.retry import retry_outage
from celery_throttle.errors import ConfigurationError, require_extra
from celery_throttle.limits.duration import Duration, check_duration
from celery_throttle.observe.forecasts.reader import forecast_fan_out
from celery_throttle.observe.forecasts.solver import Forecast, is_slower
from celery_throttle.observe.merged import merge
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.observe.text import count
from celery_throttle.operations.author import Author
from celery_throttle.operations.fan_outs import REVOKED, pause_fan_out, resume_fan_out
from celery_throttle.store.keys import FAN_OUT_NUMBERS, Keys, fan_out_ref
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.app_limits import AppLimits

T = TypeVar("T")

#: Result backends that this process can neither read nor write: there is none, or results go to the
#: process that sent a task, which only the worker knows.
_UNREADABLE = (DisabledBackend, RPCBackend)

#: Seconds between two polls of a fan-out's progress.
POLL_SECONDS = 0.2

#: Ended tasks that one call reads.
_PAGE_SIZE = 500

#: How often a forecast is repeated if tasks end much slower than limits allow, and the seconds
#: between: it shows that workers are too slow only while due tasks are left between two claims.
_FORECAST_TRIES, _FORECAST_INTERVAL_SECONDS = 3, 0.05


class FanOut:
    """A handle of a fan-out, in any process of the app.

    :meth:`~celery_throttle.Throttle.fan_out` and :meth:`~celery_throttle.Throttle.fan_out_named`
    return it. All methods block; in asyncio, call them with ``asyncio.to_thread()``. While limits
    are disabled, :meth:`pause`, :meth:`resume` and :meth:`cancel` have no effect, since no task
    waits.

    Attributes:
        name: The name of the fan-out.
    """

    def __init__(self, throttle: AppLimits, name: str, shards: Iterable[str] | None = None) -> None:
        self._throttle = throttle
        self.name = name
        #: The names of the shards that have a part, as far as that is known; None: not at all.
        self._shards = shards

    def __repr__(self) -> str:
        return f"FanOut({self.name!r})"

    def progress(self) -> Progress:
        """Return the progress of the fan-out.

        Raises:
            UnknownFanOutError: There is no record of the fan-out, or the record has expired.
            StoreUnavailableError: The server cannot be reached.
        """
        return self._read().progress()

    def _read(self) -> FanOutParts:
        """Read the parts of the fan-out. Raises as :meth:`progress`."""
        parts = FanOutParts(self._throttle, self.name, self._shards)
        parts.check_found()
        self._shards = parts.shards
        return parts

    def _each_shard(self) -> Iterator[AppLimits]:
        """Yield the limits of each shard with a part, also of those that are added meanwhile.

        Raises:
            StoreUnavailableError: at the end: a part could not be reached.
            UnknownFanOutError: see :meth:`progress`.
        """
        done = set[str]()
        while True:
            parts = self._read()
            new = [shard for shard in parts.found if shard not in done]
            for shard in new:
                yield parts.found[shard].limits
            if not new or self._throttle.parts is None:
                break
            done.update(new)
        parts.check_reachable()

    def pause(
        self, lasts: Duration | None = None, *, reason: str | None = None, by: str | None = None
    ) -> None:
        """Pause the fan-out: none of its waiting tasks starts. Tasks that have started continue.

        Args:
            lasts: The length of the pause, as for a limit; default until :meth:`resume`. The call
                may extend a pause that is in force, but never shortens it.
            reason: The reason, up to 500 characters; recorded in the log of changes.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Raises:
            LimitValueError: ``lasts`` is negative, or no duration.
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: See :meth:`progress`.
        """
        author = Author.of(by, reason)
        for limits in self._each_shard():
            limits.run_plan(pause_fan_out(limits.keys, self.name, lasts, author))

    def resume(self, *, reason: str | None = None, by: str | None = None) -> None:
        """Lift the pause of the fan-out, if there is one.

        Args:
            reason: See :meth:`pause`.
            by: See :meth:`pause`.

        Raises:
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: See :meth:`progress`.
        """
        author = Author.of(by, reason)
        for limits in self._each_shard():
            limits.run_plan(resume_fan_out(limits.keys, self.name, author))

    def cancel(
        self,
        seen: Callable[[int], None] | None = None,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Revoke all waiting tasks of the fan-out.

        Their results become ``REVOKED``, unless they ignore them. The signal ``task_revoked`` is
        not sent. Tasks that have started continue, and so do their retries. A process that still
        sends tasks of the fan-out stops. If the call is interrupted, repeat it.

        Args:
            seen: A function that the call invokes from time to time with the number of tasks
                revoked so far.
            reason: See :meth:`pause`.
            by: See :meth:`pause`.

        Returns:
            The number of tasks that were revoked.

        Raises:
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: See :meth:`progress`.
        """
        author, cancelled = Author.of(by, reason), 0
        for limits in self._each_shard():
            of_part = 0
            try:
                for of_part in self._cancel_pages(limits):
                    if seen is not None:
                        seen(cancelled + of_part)
            finally:
                if of_part:
                    what, subject = count(of_part, "task"), Keys.field(fan_out_ref(self.name))
                    limits.note_removal("cancel", subject, what, author)
            cancelled += of_part
        self._mark_revoked()
        return cancelled

    def _cancel_pages(self, limits: AppLimits) -> Iterator[int]:
        """Revoke some tasks of a part at a time, and yield the number of tasks revoked so far."""
        cancelled, names = 0, [limits.keys.fan_out(self.name), limits.keys.totals()]
        for number in range(FAN_OUT_NUMBERS):
            cursor: Argument = "0"
            is_cut = True
            while is_cut or cursor != b"0":
                call = Call(script("cancel"), names, ["", number, cursor])
                cursor, tasks, is_cut = limits.store.run(call)
                cancelled += tasks
                yield cancelled

    def _mark_revoked(self) -> None:
        """Store the state REVOKED of cancelled tasks, or waiting for a result would never end.

        Tasks that return to their lines after the cancel are found by the next poll.
        """
        app = self._throttle.app
        if not self._has_results():
            return
        for part in self._read().found.values():
            read = part.marked
            while rows := self._read_page(part.limits, read, are_marked=True):
                for task_id, outcome in rows:
                    if outcome == REVOKED:  # and its result is not ignored
                        app.backend.mark_as_revoked(task_id, "cancelled with its fan-out")
                read += len(rows)

    def _read_page(
        self, limits: AppLimits, first: int, *, are_marked: bool = False
    ) -> list[tuple[str, str]]:
        """Return ids and outcomes of ended tasks of a part, from the position ``first`` on.

        ``are_marked``: record that the results of those before ``first`` are marked as revoked.
        """
        args = [first, first + _PAGE_SIZE - 1, int(are_marked)]
        record = limits.keys.fan_out(self.name)
        reply = limits.store.run(Call(script("list_results"), [record], args))
        texts = [text.decode() for text in reply]
        return list(zip(texts[::2], texts[1::2], strict=True))

    def _page(self, read: Counter[str]) -> list[AsyncResult[Any]]:
        """Return results of ended tasks that were not read before.

        ``read``: how many of each part were read; this call counts its own once it has read all.

        Raises:
            StoreUnavailableError: a part cannot be reached.
        """
        results: list[AsyncResult[Any]] = []
        counts: Counter[str] = Counter()
        parts = self._read()
        parts.check_reachable()
        for shard, part in parts.found.items():
            rows = self._read_page(part.limits, read[shard])
            results += (self._throttle.app.AsyncResult(task_id) for task_id, _ in rows)
            counts[shard] = len(rows)
        read += counts
        return results

    def forecast(self) -> Forecast:
        """Return when the last waiting task of the fan-out will have started.

        If the tasks need slots, or there are too few processes, the forecast uses the rate at which
        tasks ended recently.

        Returns:
            The forecast. While the fan-out is paused, ``limited_by`` is None, and ``cause`` is
            ``"pause"``.

        Raises:
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: See :meth:`progress`.
        """
        parts = self._read()
        forecasts = [self._forecast_part(part) for part in parts.found.values()]
        return merge(forecasts)

    def _forecast_part(self, part: FanOutPart) -> Forecast:
        limits, progress = part.limits, part.progress
        for _ in range(_FORECAST_TRIES):
            record = limits.keys.fan_out(self.name)
            forecast = limits.run_plan(forecast_fan_out(limits.observer, record, progress.rate))
            if forecast.seconds is None or forecast.cause == "processes":
                break
            if not is_slower(forecast.waiting, progress.rate, forecast.seconds):
                break
            time.sleep(_FORECAST_INTERVAL_SECONDS)
        return forecast

    def watch(self, timeout: float | None = None) -> Progress:
        """Wait as :meth:`wait` does, with a progress bar on standard error.

        Needs the extra ``bar``.

        Args:
            timeout: See :meth:`wait`.

        Raises:
            MissingExtraError: The extra is not installed.
            LimitValueError: See :meth:`wait`.
            celery.exceptions.TimeoutError: See :meth:`wait`.
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: See :meth:`wait`.
        """
        with require_extra("rich", "a progress bar", "bar"):
            from celery_throttle.bulk.fan_out.bar import watch_bar  # noqa: PLC0415  # an extra

        end = _end_of(timeout)
        with watch_bar(self.name, lambda: self._retry(self.forecast, end)) as show:
            return self.wait(timeout, show)

    def wait(
        self, timeout: float | None = None, seen: Callable[[Progress], None] | None = None
    ) -> Progress:
        """Wait until the fan-out is complete, and return its final progress.

        Args:
            timeout: The most seconds to wait, 0 to 1e9; default no limit.
            seen: A function that the call invokes with the progress, about five times a second.

        Raises:
            LimitValueError: ``timeout`` is out of range.
            celery.exceptions.TimeoutError: The fan-out was not complete in that time.
            UnknownFanOutError: See :meth:`progress`.
            StoreUnavailableError: The server could not be reached for a minute, or at the end of
                ``timeout``.
        """
        end = _end_of(timeout)
        while True:
            progress = self._poll(end)
            if seen is not None:
                seen(progress)
            if progress.complete:
                return progress
            _sleep(end, f"fan-out {self.name!r} is not complete in {timeout} seconds")

    def results(self, timeout: float | None = None) -> Iterator[AsyncResult[Any]]:
        """Return an iterator over the results of the tasks, in the order in which the tasks end.

        The iterator ends when the fan-out is complete. It yields only tasks that have ended, so
        ``get()`` on a result returns at once, or raises the error of the task. But if a task
        ignores its result, or raised ``Ignore``, there is no result, and ``get()`` never returns.

        Args:
            timeout: The most seconds to wait for the next result, 0 to 1e9; default no limit.

        Raises:
            ConfigurationError: The app has no result backend that any process can read.
            LimitValueError: ``timeout`` is out of range; raised by the iterator.
            celery.exceptions.TimeoutError: No task ended in that time; raised by the iterator.
            UnknownFanOutError: See :meth:`progress`; raised by the iterator.
            StoreUnavailableError: See :meth:`wait`; raised by the iterator.
        """
        if not self._has_results():
            backend = type(self._throttle.app.backend).__name__
            raise ConfigurationError(
                f"results cannot be read from {backend}; allowed: a result backend "
                "that any process can read, such as Redis"
            )
        return self._results(timeout)

    def _results(self, timeout: float | None) -> Iterator[AsyncResult[Any]]:
        read: Counter[str] = Counter()
        end = _end_of(timeout)
        while True:
            progress = self._poll(end)
            results = self._retry(partial(self._page, read), end)
            yield from results
            if results:
                end = _end_of(timeout)
            elif progress.complete:
                return
            else:
                _sleep(end, f"no task of fan-out {self.name!r} has ended in {timeout} seconds")

    def _has_results(self) -> bool:
        """Whether this process can read results of tasks."""
        return not isinstance(self._throttle.app.backend, _UNREADABLE)

    def _poll(self, end: float) -> Progress:
        """Return its progress, after storing the results of newly cancelled tasks.

        A part that cannot be reached is waited for, until ``end`` at most.
        """
        progress = self._retry(self._progress_of_all, end)
        if progress.cancelled:
            self._retry(self._mark_revoked, end)
        return progress

    def _retry(self, action: Callable[[], T], end: float) -> T:
        return retry_outage(action, f"Fan-out {self.name}", end)

    def _progress_of_all(self) -> Progress:
        """Return the progress if all parts can be reached."""
        parts = self._read()
        parts.check_reachable()
        return parts.progress()


def _end_of(timeout: float | None) -> float:
    """Return the time of the monotonic clock after some seconds; infinity for None."""
    return inf if timeout is None else time.monotonic() + check_duration(timeout, "a timeout")


def _sleep(end: float, failure: str) -> None:
    """Sleep between two polls; after ``end``, raise TimeoutError with ``failure``."""
    left = end - time.monotonic()
    if left <= 0:
        raise WaitedTooLong(failure)
    time.sleep(min(POLL_SECONDS, left))
