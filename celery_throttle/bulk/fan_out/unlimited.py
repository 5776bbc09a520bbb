"""Fan-outs while limits are disabled: the tasks are sent as by Celery, and there is no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from celery import states

from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.limits.duration import Duration
from celery_throttle.observe.forecasts.reader import forecast_fan_out
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.tasks.app_limits import AppLimits

#: The outcomes of tasks in some of Celery's states; others that have ended are "done".
_OUTCOMES = {states.FAILURE: "failed", states.REVOKED: "revoked"}


class UnlimitedFanOut(FanOut):
    """A fan-out without lines. Only the object that ``fan_out`` returned knows its tasks.

    Its progress is read from their results. Tasks that ignore their results, and all without a
    result backend that this process can read, count as done once they are sent. As no task waits, a
    pause and :meth:`cancel` have no effect.
    """

    def __init__(self, throttle: AppLimits, name: str, results: Sequence[Any]) -> None:
        super().__init__(throttle, name)
        self._pending = list(results)
        #: Results and outcomes of tasks that have ended, in the order in which that was seen.
        self._ended: list[tuple[Any, str]] = []

    def progress(self) -> Progress:
        """Return its progress."""
        has_results, pending = self._has_results(), []
        for result in self._pending:
            state = result.state if has_results and not result.ignored else states.SUCCESS
            if state in states.READY_STATES:
                self._ended.append((result, _OUTCOMES.get(state, "done")))
            else:
                pending.append(result)
        self._pending = pending
        outcomes = [outcome for _, outcome in self._ended]
        return Progress(
            name=self.name,
            sent=len(outcomes) + len(pending),
            waiting=0,
            running=len(pending),
            done=outcomes.count("done"),
            failed=outcomes.count("failed"),
            revoked=outcomes.count("revoked"),
            rate=None,
            paused=0.0,
            closed=True,
            cancelled=False,
        )

    def forecast(self) -> Forecast:
        """Return a forecast in which no task waits."""
        limits = self._throttle
        record = limits.keys.fan_out(self.name)
        return limits.run_plan(forecast_fan_out(limits.observer, record, None))

    def pause(self, lasts: Duration | None = None, **_: str | None) -> None:
        """Do nothing."""

    def resume(self, **_: str | None) -> None:
        """Do nothing."""

    def cancel(self, seen: Callable[[int], None] | None = None, **_: str | None) -> int:  # noqa: ARG002  # no task waits
        """Return 0, as no task waits."""
        return 0

    def _has_results(self) -> bool:
        return bool(self._throttle.app.conf.task_always_eager) or super()._has_results()

    def _progress_of_all(self) -> Progress:
        return self.progress()

    def _page(self, read: Counter[str]) -> list[Any]:
        results = [result for result, _ in self._ended[read[""] :]]
        read[""] += len(results)
        return results
