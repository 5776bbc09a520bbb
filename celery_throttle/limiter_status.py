"""The status of a limiter: its limits, the tasks that wait, and the changes.

``x()`` and ``ax()`` execute the same plan. Limits in memory, and disabled limits, have no status.
"""

from __future__ import annotations

from celery_throttle.limiter_core import LimiterCore
from celery_throttle.limits.reference import RefLike, parse_ref
from celery_throttle.observe.status.changes import read_changes
from celery_throttle.observe.status.limits import read_page
from celery_throttle.observe.status.tasks import explain_task, read_waiting_tasks
from celery_throttle.observe.values import Change, Status, TaskStatus, WaitingPage


class LimitsStatus(LimiterCore):
    """The status of a :class:`~celery_throttle.limiter.Limiter`."""

    @property
    def own_broker(self) -> str:
        """The broker of the app's queues, as the names of queues begin; empty without an app.

        :meta private:
        """
        return ""

    def task_name(self, packed: bytes) -> str | None:  # noqa: ARG002  # an app's limiter knows
        """Return the name of the task of a message in a line; None if it is not known.

        :meta private:
        """
        return None

    def task_arguments(self, packed: bytes) -> tuple[str, ...]:  # noqa: ARG002  # as above
        """Return the texts of the arguments of a message in a line; none if they are not known.

        :meta private:
        """
        return ()

    def stored_state(self, task_id: str) -> str | None:  # noqa: ARG002  # as above
        """Return the state of a task in the result backend; None if it has none.

        :meta private:
        """
        return None

    def status(self, *, after: str = "", most: int = 100) -> Status:
        """Return the status of all limits, page by page, in the order of their names.

        Args:
            after: The name after which the page begins: ``next`` of the previous page. Default:
                return the first page.
            most: The most limits on a page; default 100.

        Raises:
            ConfigurationError: There is no server: the limits are in memory or disabled.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(read_page(self.observer, after, most))

    async def astatus(self, *, after: str = "", most: int = 100) -> Status:
        """The asyncio twin of :meth:`status`."""
        return await self.arun_plan(read_page(self.observer, after, most))

    def explain(self, task_id: str) -> TaskStatus:
        """Return where a task is, and why it does not run yet.

        Args:
            task_id: The id of the task. An unknown id is not an error; its location is
                ``"unknown"``.

        Raises:
            ConfigurationError: There is no server: the limits are in memory or disabled.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(explain_task(self.observer, task_id, self.task_name))

    async def aexplain(self, task_id: str) -> TaskStatus:
        """The asyncio twin of :meth:`explain`."""
        return await self.arun_plan(explain_task(self.observer, task_id, self.task_name))

    def list_waiting(self, limit: RefLike, *, first: int = 0, most: int = 50) -> WaitingPage:
        """Return the tasks that wait at a limit, page by page.

        Args:
            limit: The name of the limit, for all its keys, or a pair of name and key.
            first: The number of tasks to skip: ``next`` of the previous page. Default 0.
            most: The most tasks on a page; default 50.

        Raises:
            UnknownLimitError: The limit is not defined.
            ConfigurationError: There is no server: the limits are in memory or disabled.
            StoreUnavailableError: The server cannot be reached.
        """
        plan = read_waiting_tasks(self.observer, parse_ref(limit), self.task_name, first, most)
        return self.run_plan(plan)

    async def alist_waiting(self, limit: RefLike, *, first: int = 0, most: int = 50) -> WaitingPage:
        """The asyncio twin of :meth:`list_waiting`."""
        plan = read_waiting_tasks(self.observer, parse_ref(limit), self.task_name, first, most)
        return await self.arun_plan(plan)

    def changes(self, *, most: int = 100, before: str | None = None) -> list[Change]:
        """Return the changes of limits, the newest first. The server keeps the last 1,000.

        Args:
            most: The most changes to return; default 100.
            before: The ``id`` of a change: return only older changes. Default: begin with the
                newest change.

        Raises:
            ConfigurationError: There is no server: the limits are in memory or disabled.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(read_changes(self.observer, most, before))

    async def achanges(self, *, most: int = 100, before: str | None = None) -> list[Change]:
        """The asyncio twin of :meth:`changes`."""
        return await self.arun_plan(read_changes(self.observer, most, before))
