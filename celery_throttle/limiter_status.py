"""What a limiter can tell of its limits: their status, tasks that wait, and changes.

``x()`` and ``ax()`` execute the same plan. Limits in memory, and disabled limits, have no status.
"""

from __future__ import annotations

from celery_throttle.limiter_core import LimiterCore
from celery_throttle.limits.reference import RefLike, parse_ref
from celery_throttle.observe.tasks import Observer
from celery_throttle.observe.values import Change, Status, TaskStatus, WaitingPage


class LimitsStatus(LimiterCore):
    """The status of a :class:`~celery_throttle.limiter.Limiter`."""

    @property
    def observer(self) -> Observer:
        """The plans that read the status.

        :meta private:
        """
        return self.backend.observer

    def task_name(self, packed: bytes) -> str | None:  # noqa: ARG002  # an app's limiter knows
        """Return the name of the task of a message in a line; None if it is not known.

        :meta private:
        """
        return None

    def status(self, *, after: str = "", most: int = 100) -> Status:
        """Return the status of all limits, some at a time, in the order of their names.

        Args:
            after: the name behind which to begin: ``next`` of the page before.
            most: how many limits at most.

        Raises:
            ConfigurationError: there is no server.
            StoreUnavailableError: the server cannot be reached.
        """
        return self.run_plan(self.observer.of_all(after, most))

    async def astatus(self, *, after: str = "", most: int = 100) -> Status:
        """:meth:`status` for asyncio."""
        return await self.arun_plan(self.observer.of_all(after, most))

    def explain(self, task_id: str) -> TaskStatus:
        """Return where a task is, and why it does not run yet. Raises as :meth:`status`."""
        return self.run_plan(self.observer.explain(task_id, self.task_name))

    async def aexplain(self, task_id: str) -> TaskStatus:
        """:meth:`explain` for asyncio."""
        return await self.arun_plan(self.observer.explain(task_id, self.task_name))

    def list_waiting(self, limit: RefLike, *, first: int = 0, most: int = 50) -> WaitingPage:
        """Return tasks that wait at a limit, some at a time.

        Args:
            limit: its name, for all its keys, or a pair of name and key.
            first: how many to pass over: ``next`` of the page before.
            most: how many tasks at most.

        Raises:
            UnknownLimitError: no limit of that name is defined. Others as :meth:`status`.
        """
        plan = self.observer.waiting_tasks(parse_ref(limit), self.task_name, first, most)
        return self.run_plan(plan)

    async def alist_waiting(self, limit: RefLike, *, first: int = 0, most: int = 50) -> WaitingPage:
        """:meth:`list_waiting` for asyncio."""
        plan = self.observer.waiting_tasks(parse_ref(limit), self.task_name, first, most)
        return await self.arun_plan(plan)

    def changes(self, *, most: int = 100, before: str | None = None) -> list[Change]:
        """Return the changes of limits, the newest first. The last 1,000 are kept.

        Args:
            most: how many at most.
            before: the ``id`` of the change behind which to begin.

        Raises as :meth:`status`.
        """
        return self.run_plan(self.observer.changes(most, before))

    async def achanges(self, *, most: int = 100, before: str | None = None) -> list[Change]:
        """:meth:`changes` for asyncio."""
        return await self.arun_plan(self.observer.changes(most, before))
