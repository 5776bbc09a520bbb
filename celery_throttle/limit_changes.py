"""Changes of limits at run time: define, undefine, apply rules, pause all and resume all.

Each change is recorded, with who made it and why. :mod:`celery_throttle.handle` has those of one
limit.
"""

from __future__ import annotations

from typing import Any

from celery_throttle.limiter_core import LimiterCore
from celery_throttle.limits.author import Author
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.reference import make_ref
from celery_throttle.limits.requirement import LimitsLike
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.rules import Applied, FileRules, author_of_file
from celery_throttle.rules.rules import Rules


class LimitChanges(LimiterCore):
    """The changes of a :class:`~celery_throttle.limiter.Limiter` that are not of one handle."""

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
        """Define a limit at run time, for all clients at once, and for tasks in lines.

        It takes precedence over the rules file and the code until :meth:`undefine`. Units in use
        stay in use: they drain at a new rate, and count as taken now in a new window.

        Args:
            name: the name of the limit.
            limit: text or :class:`Limit`, or several that all have to allow; None: only change the
                weight.
            key: define only this key of the limit ("gold tenants"); None: the limit itself.
            weight: the number of dispatches of a line that needs the limit, or this key of it, for
                each dispatch of a line of weight 1: 1 to 100. A key without a weight has that of
                its name; the default of a name is 1. If a line needs several limits, the greatest
                weight counts. None: do not change it.
            seconds: for how long; then the rules file or the code decide again. None: until
                :meth:`undefine`.
            reason: why, in words; recorded with the change.
            by: who; default the user of this process and its host.

        Raises:
            LimitError: the definition is wrong, or switches between a rate and slots.
            UnknownLimitError: a key, or only a weight, of a limit that is not defined.
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
        """:meth:`define` for asyncio."""
        author = Author.of(by, reason)
        ref = make_ref(name, key)
        await self.arun_plan(self.plans.define(ref, limit, weight, lasts=seconds, author=author))

    def undefine(
        self, name: str, *, key: Any = None, reason: str | None = None, by: str | None = None
    ) -> None:
        """Remove what :meth:`define` defined: the rules file or the code decide again.

        Without them, the limit is no longer defined; for a key, that of its name applies. Likewise
        for the weight.

        If nothing was defined, a limit that only other code has registered is removed. A process
        whose code has it registers it again when it needs it; its units in use are kept.
        """
        self.run_plan(self.plans.undefine(make_ref(name, key), Author.of(by, reason)))

    async def aundefine(
        self, name: str, *, key: Any = None, reason: str | None = None, by: str | None = None
    ) -> None:
        """:meth:`undefine` for asyncio."""
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
        """Put the rules of a file in force, all at once, in place of those of the file before.

        Limits and weights that were defined at run time stay in force; when they end, the rules
        follow. Units in use stay in use, as with :meth:`define`.

        Args:
            rules: of the file; see :func:`~celery_throttle.rules.file.load_rules`.
            source: the path of the file, recorded with the change.
            modified: when the file was modified, in seconds since 1970. It changes nothing if the
                rules in force were modified later. None: now, so that it always replaces them.
            by: who; default the user of this process and its host.
            reason: why, in words; default the name of the file.

        Returns:
            Whether the rules are in force.

        Raises:
            RulesError: a limit would switch between a rate and slots. Nothing has changed.
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
        """:meth:`apply_rules` for asyncio."""
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
        """Pause every limit that is defined, one after the other; return their names.

        As :meth:`~celery_throttle.handle.LimitHandle.pause` for each. A limit that is defined later
        is not paused.
        """
        return self.run_plan(self.plans.pause_all(seconds, Author.of(by, reason)))

    async def apause_all(
        self, seconds: float | None, *, reason: str | None = None, by: str | None = None
    ) -> list[str]:
        """:meth:`pause_all` for asyncio."""
        return await self.arun_plan(self.plans.pause_all(seconds, Author.of(by, reason)))

    def resume_all(self, *, reason: str | None = None, by: str | None = None) -> list[str]:
        """Lift the pauses of all limits; return the names of those that were paused.

        Pauses of single keys stay, and so do those of fan-outs. Pauses that were there before
        :meth:`pause_all` are lifted as well.
        """
        return self.run_plan(self.plans.resume_all(Author.of(by, reason)))

    async def aresume_all(self, *, reason: str | None = None, by: str | None = None) -> list[str]:
        """:meth:`resume_all` for asyncio."""
        return await self.arun_plan(self.plans.resume_all(Author.of(by, reason)))

    def register(self) -> None:
        """Put the limits of the code in force, unless others replace them."""
        self.run_plan(self.plans.register(self.code_limits))
