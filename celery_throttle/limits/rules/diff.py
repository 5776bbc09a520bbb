"""What differs between two sets of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeVar

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rules.rules import (
    Rules,
    format_ref,
    format_texts,
    format_toml,
    is_pattern,
    sort_refs,
    sort_tasks,
)

Kind = Literal["added", "removed", "changed", "moved"]
What = Literal["limit", "weight", "route"]

Subject = TypeVar("Subject", LimitRef, str)
V = TypeVar("V")


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
    return (
        *_compare("limit", sort_refs, old.limits, new.limits, format_toml),
        *_compare("weight", sort_refs, old.weights, new.weights, str),
        *_compare("route", sort_tasks, old.routes, new.routes, format_texts),
        *_compare_order(old, new),
    )


def _compare(
    what: What,
    sort: Callable[[Collection[Subject]], Iterable[Subject]],
    old: Mapping[Subject, V],
    new: Mapping[Subject, V],
    format_value: Callable[[V], str],
) -> Iterator[Change]:
    for subject in sort({**old, **new}):
        before, after = old.get(subject), new.get(subject)
        if before is None and after is not None:
            yield Change("added", what, subject, None, format_value(after))
        elif before is not None and after is None:
            yield Change("removed", what, subject, format_value(before), None)
        elif before is not None and after is not None and before != after:
            yield Change("changed", what, subject, format_value(before), format_value(after))


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
