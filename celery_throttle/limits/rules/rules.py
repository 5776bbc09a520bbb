"""The content of a rules file as an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.dump import dump_rules

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits, weights and routes of a rules file. Rules are equal if their digests are.

    Attributes:
        limits: The limits of names and of single keys.
        weights: The weights of names and of single keys.
        routes: The limits of tasks as written, by the name of the task or a pattern with ``*``. A
            name takes precedence over all patterns. If several patterns match, the first applies.
        digest: Hexadecimal digits that identify the content of the rules. They do not depend on
            spelling, comments or order, except for the order of patterns. Computed.
    """

    limits: Mapping[LimitRef, Limits] = field(default_factory=dict, compare=False)
    weights: Mapping[LimitRef, int] = field(default_factory=dict, compare=False)
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        for name in ("limits", "weights", "routes"):
            object.__setattr__(self, name, MappingProxyType({**getattr(self, name)}))
        text = dump_rules(self.limits, self.weights, self.routes)
        digest = blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        object.__setattr__(self, "digest", digest)
