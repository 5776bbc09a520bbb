"""The limits of calls for which functions, or missing arguments, decide which limits apply.

What is computed goes with the message as a header, so that it is computed once: where the message
first meets its limits. A retry is another message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Signature
from typing import Any

from celery_throttle.errors import ThrottleError, result_error
from celery_throttle.limits.cost import ArgumentCost
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.key_template import ArgumentReader, KeyTemplate
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import MAX_LIMITS_PER_TASK, Requirement, check_ref_count
from celery_throttle.operations.replies import unknown_limit_error
from celery_throttle.tasks.costs import TaskCosts, read_result
from celery_throttle.tasks.functions import TaskFunction

#: A limit of a task as it was read: a template, or a function that returns limits.
Entry = KeyTemplate | TaskFunction


_ALLOWED = (
    "a limit such as 'mail:42' or throttle['mail', 42], a list of limits, or None for no limit"
)


@dataclass(frozen=True, slots=True)
class ComputedLimits:
    """The entries and costs of a task whose limits depend on more than keys."""

    where: str  #: the task, for messages
    entries: tuple[Entry, ...]
    costs: TaskCosts
    signature: Signature  #: of the task, without ``self``
    known: Mapping[str, Limits]
    readers: Mapping[KeyTemplate | ArgumentCost, ArgumentReader]  #: of the task's own texts
    functions: tuple[TaskFunction, ...]  #: among the entries and costs

    @classmethod
    def of(
        cls,
        entries: tuple[Entry, ...],
        costs: TaskCosts,
        signature: Signature,
        known: Mapping[str, Limits],
        where: str,
    ) -> ComputedLimits:
        """Read which arguments the entries and costs of a task need.

        Raises:
            KeyTemplateError: the task does not have an argument.
        """
        found = [each for each in (*entries, *costs.all()) if isinstance(each, TaskFunction)]
        functions = tuple(dict.fromkeys(found))
        limits = cls(where, entries, costs, signature, known, {}, functions)
        templates = [entry for entry in entries if isinstance(entry, KeyTemplate)]
        texts: list[KeyTemplate | ArgumentCost] = [*templates]
        texts += [each for each in costs.all() if isinstance(each, ArgumentCost)]
        return replace(limits, readers={text: limits._reader(text) for text in texts})

    def requirement(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Requirement | None:
        """Return what one call requires; None if no limit applies to it.

        Raises:
            ThrottleError: a function, a key or a cost is wrong; the message names it.
        """
        found: dict[LimitRef, None] = {}
        for entry in self.entries:
            if isinstance(entry, TaskFunction):
                found.update(dict.fromkeys(self._call(entry, args, kwargs)))
            else:
                ref = self._ref(entry, args, kwargs)
                if ref is not None:
                    found[ref] = None
        if not found:
            return None
        refs = tuple(found)
        check_ref_count(refs, MAX_LIMITS_PER_TASK)
        results: dict[TaskFunction, Any] = {}
        return Requirement(
            refs, tuple([self._cost(ref.name, args, kwargs, results) for ref in refs])
        )

    def _ref(
        self, template: KeyTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> LimitRef | None:
        if not template.arguments:
            return template.ref()
        return template.ref(self._reader(template).read(args, kwargs))

    def _call(
        self, function: TaskFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[LimitRef]:
        """Return the limits and keys that a function returns: None, a limit, or a list of them."""
        result = function.call(args, kwargs)
        items = result if isinstance(result, (list, tuple)) else (result,)
        templates = []
        try:
            for item in items:
                if item is not None:
                    template = KeyTemplate.of(item)
                    if template.name not in self.known:
                        raise unknown_limit_error(template.name, self.known)
                    templates.append(template)
        except ThrottleError as error:
            raise result_error(function.text, result, error, _ALLOWED) from None
        refs = [self._ref(template, args, kwargs) for template in templates]
        return [ref for ref in refs if ref is not None]

    def _cost(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        results: dict[TaskFunction, Any],
    ) -> int:
        """Return the cost for a limit; ``results`` has those of functions, each is called once."""
        cost = self.costs[name]
        if isinstance(cost, int):
            return cost
        if isinstance(cost, ArgumentCost):
            return cost.amount(*self._reader(cost).read(args, kwargs))
        if cost not in results:
            results[cost] = cost.call(args, kwargs)
        return read_result(results[cost], name, cost, self.known)

    def _reader(self, text: KeyTemplate | ArgumentCost) -> ArgumentReader:
        """Return the reader for a text; a function may return any template."""
        reader = self.readers.get(text)
        if reader is None:
            reader = ArgumentReader.for_signature(
                self.signature, text.arguments, self.where, text.optional
            )
        return reader
