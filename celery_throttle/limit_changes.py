"""Changes of limits at run time: define, undefine, apply rules, pause all and resume all.

The server records each change with its author and its reason. :mod:`celery_throttle.handle` has the
changes of one limit.
"""

from __future__ import annotations

from typing import Any

from celery_throttle.limiter_core import LimiterCore
from celery_throttle.limits.author import Author
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.reference import make_ref
from celery_throttle.limits.requirement import LimitsLike
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.rules import Applied, FileRules, author_of_file


class LimitChanges(LimiterCore):
    """The methods of a :class:`~celery_throttle.limiter.Limiter` that change limits."""

    def define(
        self,
        name: str,
        limit: LimitsLike | None = None,
        *,
        key: Any = None,
        weight: int | None = None,
        seconds: float | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Define a limit at run time, for all clients and all waiting tasks at once.

        The definition takes precedence over the rules file and the code until :meth:`undefine`.
        Units in use stay in use: a meter drains them at the new rate, and a window counts them as
        taken now.

        Args:
            name: The name of the limit.
            limit: Text, a :class:`Limit`, or a list of these, all of which must allow. None (the
                default): change only the weight.
            key: Define only this key of the limit. None (the default): define the limit itself.
            weight: The weight of lines that need the limit, or this key, 1 to 100. Workers take
                three times as many tasks from a line of weight 3 as from a line of weight 1. A key
                without its own weight has the weight of its name; the default for a name is 1. If a
                line needs several limits, the greatest weight counts. None (the default): do not
                change the weight.
            seconds: The duration of the definition, 0 to 1e9. After that, the rules file or the
                code decides again. None (the default): until :meth:`undefine`.
            reason: The reason, up to 500 characters; recorded with the change.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Raises:
            LimitError: The definition is wrong, or switches between a rate and slots.
            UnknownLimitError: ``key``, or only ``weight``, is given, and the limit is not defined.
            StoreUnavailableError: The server cannot be reached.

        Example:
            >>> limiter = Limiter("memory://", {"mail": "10/m"})
            >>> limiter.define("mail", "100/m burst 5", key="tenant-42", reason="gold plan")
            >>> limiter["mail", "tenant-42"].peek().limit
            5
        """
        author = Author.of(by, reason)
        ref = make_ref(name, key)
        self.run_plan(self.plans.define(ref, limit, weight, lasts=seconds, author=author))

    async def adefine(
        self,
        name: str,
        limit: LimitsLike | None = None,
        *,
        key: Any = None,
        weight: int | None = None,
        seconds: float | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """The asyncio twin of :meth:`define`."""
        author = Author.of(by, reason)
        ref = make_ref(name, key)
        await self.arun_plan(self.plans.define(ref, limit, weight, lasts=seconds, author=author))

    def undefine(
        self, name: str, *, key: Any = None, reason: str | None = None, by: str | None = None
    ) -> None:
        """Remove the definition that :meth:`define` made: the rules file or the code decides again.

        It also removes the weight. If neither the rules file nor the code has the limit, the limit
        is no longer defined. A key has the definition of its name again.

        If no call of :meth:`define` is in force, this call removes a limit that only the code of
        other processes defines. If one of these processes needs the limit, the process defines it
        again. Units in use stay in use.

        Args:
            name: The name of the limit.
            key: Remove only the definition of this key. None (the default): remove the definition
                of the limit itself.
            reason: The reason, up to 500 characters; recorded with the change.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Raises:
            UnknownLimitError: The limit is not defined.
            StoreUnavailableError: The server cannot be reached.
        """
        self.run_plan(self.plans.undefine(make_ref(name, key), Author.of(by, reason)))

    async def aundefine(
        self, name: str, *, key: Any = None, reason: str | None = None, by: str | None = None
    ) -> None:
        """The asyncio twin of :meth:`undefine`."""
        await self.arun_plan(self.plans.undefine(make_ref(name, key), Author.of(by, reason)))

    def apply_rules(
        self,
        rules: Rules,
        source: str,
        *,
        modified: float | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> bool:
        """Put the rules of a file in force, all at once, in place of the rules in force.

        Definitions and weights that were set at run time stay in force; when they end, the rules
        apply. Units in use stay in use, as with :meth:`define`.

        Args:
            rules: The rules, see :func:`~celery_throttle.limits.rules.file.load_rules`.
            source: The path of the file, recorded with the change.
            modified: When the file was modified, in seconds since 1970. If the rules in force were
                modified later, the call changes nothing. None (the default): now, so that the call
                always replaces the rules in force.
            by: The author, up to 500 characters. Default: the user and host of this process.
            reason: The reason, up to 500 characters. Default: the name of the file.

        Returns:
            Whether the rules are in force.

        Raises:
            RulesError: A limit would switch between a rate and slots. The call changed nothing.
            StoreUnavailableError: The server cannot be reached.
        """
        return self.run_plan(self._apply(rules, source, modified, by, reason)).accepted

    async def aapply_rules(
        self,
        rules: Rules,
        source: str,
        *,
        modified: float | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> bool:
        """The asyncio twin of :meth:`apply_rules`."""
        plan = self._apply(rules, source, modified, by, reason)
        return (await self.arun_plan(plan)).accepted

    def _apply(
        self,
        rules: Rules,
        source: str,
        modified: float | None,
        by: str | None,
        reason: str | None,
    ) -> Plan[Applied]:
        file = FileRules(rules, source, to_us(modified or 0))
        author = author_of_file(source, by, reason)
        return self.plans.apply_rules(file, author, is_new=modified is None)

    def pause_all(
        self, seconds: float | None, *, reason: str | None = None, by: str | None = None
    ) -> list[str]:
        """Pause every limit that is defined, one after the other.

        A limit that is defined later is not paused.

        Args:
            seconds: The duration, 0 to 1e9; None: until it is resumed. A call never shortens a
                pause that is already in force.
            reason: The reason, up to 500 characters; recorded with the changes.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Returns:
            The names of the limits.

        Raises:
            LimitValueError: ``seconds`` is out of range.
            StoreUnavailableError: The server cannot be reached. Some limits may already be paused.
        """
        return self.run_plan(self.plans.pause_all(seconds, Author.of(by, reason)))

    async def apause_all(
        self, seconds: float | None, *, reason: str | None = None, by: str | None = None
    ) -> list[str]:
        """The asyncio twin of :meth:`pause_all`."""
        return await self.arun_plan(self.plans.pause_all(seconds, Author.of(by, reason)))

    def resume_all(self, *, reason: str | None = None, by: str | None = None) -> list[str]:
        """Lift the pauses of all limits.

        Pauses of single keys and of fan-outs stay. The call also lifts pauses that do not come from
        :meth:`pause_all`.

        Args:
            reason: The reason, up to 500 characters; recorded with the changes.
            by: The author, up to 500 characters. Default: the user and host of this process.

        Returns:
            The names of the limits that were paused.

        Raises:
            StoreUnavailableError: The server cannot be reached. Some limits may already be resumed.
        """
        return self.run_plan(self.plans.resume_all(Author.of(by, reason)))

    async def aresume_all(self, *, reason: str | None = None, by: str | None = None) -> list[str]:
        """The asyncio twin of :meth:`resume_all`."""
        return await self.arun_plan(self.plans.resume_all(Author.of(by, reason)))

    def register(self) -> None:
        """Put the limits of the code in force, unless the rules file or a definition replaces them.

        Workers do this when they start. Any other process adds missing limits to the server when it
        first uses them, and changes existing limits only by this call.

        Raises:
            StoreUnavailableError: The server cannot be reached.
        """
        self.run_plan(self.plans.register(self.code_limits))
