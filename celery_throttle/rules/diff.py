"""What differs between two sets of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeVar

from celery_throttle.limits.key import LimitRef
from celery_throttle.rules.dump import (
    format_limits,
    format_ref,
    format_texts,
    is_pattern,
    sort_refs,
    sort_tasks,
)
from celery_throttle.rules.rules import Rules

Kind = Literal["added", "removed", "changed", "moved"]
#: Of a change: a limit and key, or the task name or pattern of a route.
T = TypeVar("T", LimitRef, str)
What = Literal["limit", "weight", "route"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two sets of rules.

    Attributes:
        kind: ``"moved"`` is for patterns of routes only, whose order counts.
        what: What is added, removed, changed or moved.
        subject: The limit and key, or the task name or pattern of a route.
        old: The value before, as in a rules file; None if there was none.
        new: The value after, as in a rules file; None if there is none.
    """

    kind: Kind
    what: What
    subject: LimitRef | str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        subject = self.subject if isinstance(self.subject, str) else format_ref(self.subject)
        values = " -> ".join(value for value in (self.old, self.new) if value is not None)
        return f"{self.what} {subject} {self.kind}: {values}"


def diff_rules(old: Rules, new: Rules) -> tuple[Change, ...]:
    """Return the changes from ``old`` to ``new``: limits first, then weights, then routes.

    Texts that mean the same limit are no change. There are no changes if, and only if, the two are
    equal.
    """
    limits = (
        {ref: format_limits(limits) for ref, limits in rules.limits.items()} for rules in (old, new)
    )
    weights = ({ref: str(weight) for ref, weight in rules.weights.items()} for rules in (old, new))
    routes = (
        {task: format_texts(texts) for task, texts in rules.routes.items()} for rules in (old, new)
    )
    return (
        *_compare("limit", sort_refs, *limits),
        *_compare("weight", sort_refs, *weights),
        *_compare("route", sort_tasks, *routes),
        *_compare_order(old, new),
    )


def _compare(
    what: What,
    sort: Callable[[Collection[T]], Iterable[T]],
    old: Mapping[T, str],
    new: Mapping[T, str],
) -> Iterator[Change]:
    for subject in sort({**old, **new}):
        before, after = old.get(subject), new.get(subject)
        if before != after:
            kind: Kind = "added" if before is None else "removed" if after is None else "changed"
            yield Change(kind, what, subject, before, after)


def _compare_order(old: Rules, new: Rules) -> Iterator[Change]:
    """Yield the patterns that have moved among those that both rules have."""
    common = {*filter(is_pattern, old.routes)} & {*new.routes}
    before, after = ([task for task in rules.routes if task in common] for rules in (old, new))
    unmoved = {
        task
        for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        for task in before[block.a : block.a + block.size]
    }
    for task in after:
        if task not in unmoved:
            old_position, new_position = (order.index(task) + 1 for order in (before, after))
            yield Change("moved", "route", task, f"pattern {old_position}", f"{new_position}")
