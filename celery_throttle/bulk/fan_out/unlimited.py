"""Fan-outs while limits are disabled: the tasks are sent as by Celery, and there is no record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery import states
from celery.canvas import Signature

from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.tasks.app_limits import AppLimits

#: The outcomes of tasks in some of Celery's states; others that have ended are "done".
_OUTCOMES = {states.FAILURE: "failed", states.REVOKED: "revoked"}


class UnlimitedFanOut(FanOut):
    """A fan-out without lines. Only the object that ``fan_out`` returned knows its tasks.

    Its progress is read from their results. Without a result backend that this process can read,
    tasks count as done once they are sent. As no task waits, a pause and :meth:`cancel` have no
    effect.
    """

    def __init__(self, throttle: AppLimits, name: str, results: Sequence[Any]) -> None:
        super().__init__(throttle, name)
        self._results_by_id = {result.id: result for result in results}
        self._pending = list(results)
        self._outcomes: list[tuple[str, str]] = []

    @classmethod
    def send(
        cls, throttle: AppLimits, name: str, signatures: Iterable[Signature]
    ) -> UnlimitedFanOut:
        """Send tasks to the broker; with ``task_always_eager`` they run now."""
        return cls(throttle, name, [signature.apply_async() for signature in signatures])

    def progress(self) -> Progress:
        """Return its progress."""
        self._read_outcomes()
        counts = [outcome for _, outcome in self._outcomes]
        return Progress(
            name=self.name,
            sent=len(self._outcomes) + len(self._pending),
            waiting=0,
            running=len(self._pending),
            done=counts.count("done"),
            failed=counts.count("failed"),
            revoked=counts.count("revoked"),
            rate=None,
            paused=0.0,
            closed=True,
            cancelled=False,
        )

    def _read_outcomes(self) -> None:
        has_results = self._has_results()
        pending = []
        for result in self._pending:
            state = result.state if has_results else states.SUCCESS
            if state in states.READY_STATES:
                self._outcomes.append((result.id, _OUTCOMES.get(state, "done")))
            else:
                pending.append(result)
        self._pending = pending

    def pause(self, seconds: float | None = None, **_: str | None) -> None:
        """Do nothing."""

    def resume(self, **_: str | None) -> None:
        """Do nothing."""

    def cancel(self, seen: Callable[[int], None] | None = None, **_: str | None) -> int:  # noqa: ARG002  # no task waits
        """Return 0, as no task waits."""
        return 0

    def _has_results(self) -> bool:
        return bool(self._throttle.app.conf.task_always_eager) or super()._has_results()

    def _result(self, task_id: str) -> Any:
        return self._results_by_id[task_id]

    def _page(self, first: int, *, mark_told: bool = False) -> list[tuple[str, str]]:  # noqa: ARG002  # as in the base class
        return self._outcomes[first:]
