"""The content of a rules file as an immutable value, as text, and compared with another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import translate
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.requirement import format_limits

Kind = Literal["added", "removed", "changed", "moved"]
What = Literal["limit", "weight", "route"]

Subject = TypeVar("Subject", LimitRef, str)
V = TypeVar("V")

_DIGEST_BYTES = 16

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

#: The wildcards of ``fnmatch``, without ``*``.
_LITERALS = re.compile(r"[?\[]")

#: An empty file would be a mistake: an editor or a full disk may have truncated it.
_NO_RULES = "# No rules.\n"


@dataclass(frozen=True, slots=True)
class Route:
    """What a route gives to tasks.

    Attributes:
        limits: The limits as written; of a rules file, a tuple of texts.
        cost: The cost as written; None if the route has none: then the attribute
            ``throttle_cost`` of the task applies.
    """

    limits: Any
    cost: Any = None

    @classmethod
    def of(cls, written: Any, where: str) -> Route:
        """Read a route: limits, or a dict of ``limits`` and ``cost``; ``where`` is for messages.

        Raises:
            ConfigurationError: a dict has no limits, or has other keys.

        :meta private:
        """
        if not isinstance(written, Mapping):
            return cls(written)
        other = next((key for key in written if key not in ("limits", "cost")), None)
        if other is not None or "limits" not in written:
            wrong = "no 'limits'" if other is None else f"the key {shown(other)}"
            raise ConfigurationError(f"{where} has {wrong}; allowed: 'limits', and 'cost'")
        return cls(written["limits"], written.get("cost"))


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits, weights and routes of a rules file. Rules are equal if their digests are.

    Attributes:
        limits: The limits of names and of single keys.
        weights: The weights of names and of single keys.
        routes: The limits and costs of tasks, by the name of the task or a pattern with ``*``. A
            name takes precedence over all patterns. If several patterns match, the first applies.
        digest: Hexadecimal digits that identify the content of the rules. They do not depend on
            spelling, comments or order, except for the order of patterns. Computed.
    """

    limits: Mapping[LimitRef, Limits] = field(default_factory=dict, compare=False)
    weights: Mapping[LimitRef, int] = field(default_factory=dict, compare=False)
    routes: Mapping[str, Route] = field(default_factory=dict, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        for name in ("limits", "weights", "routes"):
            object.__setattr__(self, name, MappingProxyType({**getattr(self, name)}))
        text = dump_rules(self.limits, self.weights, self.routes)
        digest = blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        object.__setattr__(self, "digest", digest)


def dump_rules(
    limits: Mapping[LimitRef, Sequence[Limit]],
    weights: Mapping[LimitRef, int],
    routes: Mapping[str, Route],
) -> str:
    """Return the text of a rules file with this content; names and keys are sorted."""
    tables = {
        "limits": [(format_ref(ref), format_toml(limits[ref])) for ref in sort_refs(limits)],
        "weights": [(format_ref(ref), str(weights[ref])) for ref in sort_refs(weights)],
        "routes": [(task, format_route(routes[task])) for task in sort_tasks(routes)],
    }
    return "\n".join(_table(name, rows) for name, rows in tables.items() if rows) or _NO_RULES


def _table(name: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"{_format_name(key)} = {text}" for key, text in rows]
    return "\n".join([f"[{name}]", *lines, ""])


def format_ref(ref: LimitRef) -> str:
    """Return a limit, or one key of it, as in a rules file: ``"mail"``, ``"mail:42"``."""
    return ref.name if ref.key is None else f"{ref.name}:{ref.key}"


def format_toml(limits: Iterable[Limit]) -> str:
    """Return the limits of one name or key as TOML."""
    return format_texts(format_limits(limits))


def format_texts(texts: Sequence[str]) -> str:
    """Return one text, or a list of several, as TOML."""
    if len(texts) == 1:
        return _quote(texts[0])
    return f"[{', '.join(map(_quote, texts))}]"


def format_route(route: Route) -> str:
    """Return a route as TOML."""
    limits = format_texts(route.limits)
    if route.cost is None:
        return limits
    return f"{{ limits = {limits}, cost = {_format_cost(route.cost)} }}"


def _format_cost(cost: Any) -> str:
    if isinstance(cost, Mapping):
        rows = (f"{_format_name(name)} = {_format_cost(cost[name])}" for name in sorted(cost))
        return f"{{ {', '.join(rows)} }}"
    return _quote(cost) if isinstance(cost, str) else str(cost)


def _format_name(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quote(key)


def sort_refs(refs: Iterable[LimitRef]) -> list[LimitRef]:
    """Sort limits by name, each before its keys."""
    return sorted(refs, key=lambda ref: (ref.name, ref.key or ""))


def sort_tasks(routes: Collection[str]) -> list[str]:
    """Sort names of tasks; then come the patterns, whose order counts, as they are."""
    names = sorted(task for task in routes if not is_pattern(task))
    return [*names, *filter(is_pattern, routes)]


def _quote(text: str) -> str:
    """Quote a text for TOML, which has the escapes of JSON and one control character more."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_pattern(route: str) -> bool:
    """Whether a route is a pattern, in which ``*`` stands for any text."""
    return "*" in route


def compile_route(route: str) -> re.Pattern[str]:
    """Return an expression whose ``match`` accepts a whole text. Upper and lower case differ.

    All characters but ``*`` stand for themselves, as names of tasks and paths may contain ``?`` and
    ``[``.
    """
    # translate() matches without backtracking, so a client cannot make a match slow by its path.
    return re.compile(translate(_LITERALS.sub(r"[\g<0>]", route)))


@dataclass(frozen=True, slots=True)
class RuleChange:
    """One difference between two sets of rules."""

    kind: Kind  #: ``"moved"`` is for patterns of routes only, whose order counts
    what: What  #: what is added, removed, changed or moved
    subject: LimitRef | str  #: the limit and key, or the task name or pattern of a route
    old: str | None  #: the value before, as in a rules file; None if there was none
    new: str | None  #: the value after, as in a rules file; None if there is none

    def __str__(self) -> str:
        subject = self.subject if isinstance(self.subject, str) else format_ref(self.subject)
        values = " -> ".join(value for value in (self.old, self.new) if value is not None)
        return f"{self.what} {subject} {self.kind}: {values}"


def diff_rules(old: Rules, new: Rules) -> tuple[RuleChange, ...]:
    """Return the changes from ``old`` to ``new``: limits first, then weights, then routes.

    Texts that mean the same limit are no change. There are no changes if, and only if, the two are
    equal.
    """
    return (
        *_compare("limit", sort_refs, old.limits, new.limits, format_toml),
        *_compare("weight", sort_refs, old.weights, new.weights, str),
        *_compare("route", sort_tasks, old.routes, new.routes, format_route),
        *_compare_order(old, new),
    )


def _compare(
    what: What,
    sort: Callable[[Collection[Subject]], Iterable[Subject]],
    old: Mapping[Subject, V],
    new: Mapping[Subject, V],
    format_value: Callable[[V], str],
) -> Iterator[RuleChange]:
    for subject in sort({**old, **new}):
        before, after = old.get(subject), new.get(subject)
        if before != after:
            kind: Kind = "added" if before is None else "removed" if after is None else "changed"
            texts = (None if value is None else format_value(value) for value in (before, after))
            yield RuleChange(kind, what, subject, *texts)


def _compare_order(old: Rules, new: Rules) -> Iterator[RuleChange]:
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
            yield RuleChange("moved", "route", task, f"pattern {old_position}", f"{new_position}")
