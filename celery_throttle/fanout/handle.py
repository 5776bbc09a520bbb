"""A fan-out by its name: how far it is, pause, cancel, results. From any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import TimeoutError as WaitedTooLong
from celery.result import AsyncResult

from celery_throttle.errors import ConfigurationError, UnknownFanOutError, shown
from celery_throttle.extras import needed
from celery_throttle.fanout.progress import Progress
from celery_throttle.fanout.retry import insist
from celery_throttle.forecasts.solver import WORKERS, Forecast, is_slower
from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.store.keys import FAN_OUT_LIMIT, FAN_OUT_NUMBERS, fan_out_ref
from celery_throttle.store.script import Argument, Call, script

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

#: Result backends of which this process can read and tell nothing: there is none, or results go to
#: the process that sent a task, which only its worker knows.
_UNREADABLE = (DisabledBackend, RPCBackend)

#: What ``bound_by`` of a forecast says of a pause.
PAUSE = "pause"

#: Seconds between two looks of who waits for a fan-out.
LOOK = 0.2

#: Ids of tasks that have ended which are read at once.
_PAGE = 500

#: How often it is looked whether workers are too slow, where tasks end much slower than limits
#: allow; and seconds between two looks.
_LOOKS, _BETWEEN = 3, 0.05


class FanOut:
    """A fan-out; made by ``throttle.fan_out(...)`` and ``throttle.fan_out_named(name)``.

    Attributes:
        name: its name.
    """

    def __init__(self, throttle: Throttle, name: str) -> None:
        self._throttle = throttle
        self.name = name
        self._ref = fan_out_ref(name)
        self._record = throttle.keys.fan_out(name)

    def __repr__(self) -> str:
        return f"FanOut({self.name!r})"

    def progress(self) -> Progress:
        """How far it is now.

        Raises:
            UnknownFanOutError: nothing is known of it, or not any more.
            StoreUnavailableError: the server cannot be reached.
        """
        return Progress.read(self.name, *self._facts())

    def pause(self, seconds: float | None = None) -> None:
        """Let none of its waiting tasks start, for some seconds or until :meth:`resume`.

        Those that have started go on. A pause is never shortened by another. Raises as
        :meth:`progress`, and LimitValueError for seconds below 0.
        """
        pause = self._throttle.plans.pause(self._ref, seconds, self._record)
        if self._throttle.run_plan(pause) < 0:
            raise self._unknown()

    def resume(self) -> None:
        """End a pause. Raises as :meth:`progress`."""
        self._facts()
        self._throttle.run_plan(self._throttle.plans.resume(self._ref))

    def cancel(self) -> int:
        """Take all its waiting tasks out of their lines for good; gives how many there were.

        They are revoked: their results, if the app keeps any, say so, but no worker hears of them.
        Those that have started go on, their retries too; the process that still sends stops. Cut
        short, it is finished by calling it again. Raises as :meth:`progress`.
        """
        self._facts()
        cancelled = 0
        for number in range(FAN_OUT_NUMBERS):
            cursor: Argument = "0"
            while cursor != b"0":
                call = Call(script("cancel"), [self._record], ["", number, cursor])
                cursor, count = self._throttle.store.run(call)
                cancelled += count
        self._mark_revoked()
        return cancelled

    def _mark_revoked(self) -> None:
        """As a worker does; who waits for a result would wait for ever.

        Those that come back to their lines after the cancel are found by the next look.
        """
        backend = self._throttle.app.backend
        if self._throttle.app.conf.task_ignore_result or isinstance(backend, _UNREADABLE):
            return
        read = int(self._facts()[2].get("told", 0))
        while rows := self._page(read, told=True):
            for task_id, outcome in rows:
                if outcome == "revoked":
                    backend.mark_as_revoked(task_id, "cancelled with its fan-out")
            read += len(rows)
        self._page(read, told=True)

    def _page(self, first: int, *, told: bool = False) -> list[tuple[str, str]]:
        """Tasks that have ended, in that order, and how; none if these are all."""
        args = [first, first + _PAGE - 1, int(told)]
        texts = [
            text.decode()
            for text in self._throttle.store.run(Call(script("list_results"), [self._record], args))
        ]
        return list(zip(texts[::2], texts[1::2], strict=True))

    def forecast(self) -> Forecast:
        """When the last of its tasks that wait now will have been started.

        Where limits do not tell, as they have slots or processes are too few, it goes by how fast
        tasks ended of late. For a pause without an end ``seconds`` is None, and ``bound_by``
        ``"pause"``. Raises as :meth:`progress`.
        """
        progress, throttle = self.progress(), self._throttle
        for _ in range(_LOOKS):
            told = throttle.run_plan(
                throttle.forecast_reader.of_fan_out(self._record, progress.rate)
            )
            known = told.seconds is None or told.bound_by == WORKERS
            if known or not is_slower(told.waiting, progress.rate, told.seconds or 0.0):
                break
            time.sleep(_BETWEEN)  # workers that are too slow are seen between two claims of theirs
        return replace(told, bound_by=PAUSE) if told.bound_by == FAN_OUT_LIMIT else told

    def watch(self, timeout: float | None = None) -> Progress:
        """:meth:`wait` with a bar on the terminal (standard error)."""
        with needed("rich", "a progress bar", "bar"):
            from celery_throttle.fanout import bar  # noqa: PLC0415  # an extra

        return bar.watch(self, timeout)

    def wait(
        self, timeout: float | None = None, seen: Callable[[Progress], None] | None = None
    ) -> Progress:
        """Wait until it is complete.

        Args:
            timeout: seconds to wait at most; None for any time.
            seen: called with each look at it, five times a second.

        Raises:
            celery.exceptions.TimeoutError: it took longer. Others as :meth:`progress`.
        """
        looks = _looks(timeout, f"fan-out {self.name!r} is not complete")
        while True:
            progress = self._look()
            if seen is not None:
                seen(progress)
            if progress.complete:
                return progress
            next(looks)

    def results(self, timeout: float | None = None) -> Iterator[AsyncResult[Any]]:
        """The results of its tasks in the order in which they end, until it is complete.

        Each of these tasks has ended: ``get()`` does not wait, and raises what the task raised.
        Unless there is no result, since the task raised Ignore or ignores it: then ``get()`` would
        wait for ever.

        Args:
            timeout: seconds to wait at most for the next; None for any time.

        Raises:
            ConfigurationError: the app has no result backend, or one that not any process can read.
            celery.exceptions.TimeoutError: the next took longer. Others as :meth:`progress`.
        """
        backend = self._throttle.app.backend
        if isinstance(backend, _UNREADABLE):
            raise ConfigurationError(
                f"results cannot be read from {type(backend).__name__}; allowed: a result backend "
                "that any process can read, such as Redis"
            )
        return self._results(timeout)

    def _results(self, timeout: float | None) -> Iterator[AsyncResult[Any]]:
        read, looks = 0, _looks(timeout, f"no task of fan-out {self.name!r} has ended")
        while True:
            progress = self._look()
            rows = insist(partial(self._page, read), self.name)
            for task_id, _ in rows:
                yield self._throttle.app.AsyncResult(task_id)
            read += len(rows)
            if rows:
                looks = _looks(timeout, f"no other task of fan-out {self.name!r} has ended")
            elif progress.complete:
                return
            else:
                next(looks)

    def _look(self) -> Progress:
        """How far it is; what came back since it was cancelled has its result then."""
        progress = insist(self.progress, self.name)
        if progress.cancelled:
            insist(self._mark_revoked, self.name)
        return progress

    def _facts(self) -> tuple[int, float, Mapping[str, str]]:
        """The server's time in microseconds, seconds of a pause, and the record."""
        names = [self._record, self._throttle.keys.pause(self._ref)]
        now, paused, fields = self._throttle.store.run(
            Call(script("fan_out_progress"), names, [""])
        )
        texts = [text.decode() for text in fields]
        if not texts:
            raise self._unknown()
        facts = dict(zip(texts[::2], texts[1::2], strict=True))
        return int(now), pause_to_seconds(int(paused)), facts

    def _unknown(self) -> UnknownFanOutError:
        return UnknownFanOutError(
            f"nothing is known of fan-out {shown(self.name)}, or not any more"
        )


def _looks(timeout: float | None, what: str) -> Iterator[None]:
    """Look now and then; ``what`` is said of it when time is up."""
    till = None if timeout is None else time.monotonic() + timeout
    while till is None or time.monotonic() < till:
        time.sleep(LOOK)
        yield
    raise WaitedTooLong(f"{what} in {timeout} seconds")
