"""Shards: sets of limits, each with keys of its own in Redis, on one node or server.

One call decides in one shard. The settings propose a shard for each limit::

    {
        "mail": {"limits": ["mail", "mail-*"]},                      # one shard
        "tenants": {"limits": ["tenant"], "by_key": 16},             # 16 shards, by the key
        "erp": {"limits": ["erp"], "url": "redis://erp-limits/0"},   # one shard on another server
    }

All other limits are in the home shard. The home shard stores where each limit really is, which
takes precedence: see :mod:`celery_throttle.operations.shards`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from typing import Any, NamedTuple

from celery_throttle.errors import ConfigurationError, LimitError, shown
from celery_throttle.limits.key import LimitRef, check_name, ref_text
from celery_throttle.limits.key_template import KeyTemplate
from celery_throttle.limits.rules.rules import compile_route

#: The name of the shard of the limits that no other shard has.
HOME = "home"

#: The most shards of one entry.
MAX_BY_KEY = 1024

_WORDS = ("limits", "by_key", "url")
_EXAMPLE = '{"limits": ["mail-*"]}'
_PATTERN = re.compile(r"[A-Za-z0-9_.\-*]{1,100}", re.ASCII)


class OtherShardError(ConfigurationError):
    """A limit is in another shard than the settings say, which a process may learn and follow."""

    def __init__(self, limit: str, shard: str, assigned: Mapping[str, str] | None = None) -> None:
        super().__init__(limit, shard, assigned)  # what a copy is made of, in another process
        self.limit = limit
        self.shard = shard
        #: The shards of all limits of the call that are in another one, by the names of both.
        self.assigned = assigned or {limit: shard}

    def __str__(self) -> str:
        return (
            f"limit {self.limit!r} is in shard {self.shard!r}, where other processes have put it, "
            "and this process looks for it elsewhere: give this process the same throttle_shards"
        )


def check_here(elsewhere: Mapping[str, str]) -> None:
    """Raise OtherShardError if limits are in another shard; ``elsewhere``: its name by limit."""
    for limit, shard in elsewhere.items():
        raise OtherShardError(limit, shard, elsewhere)


class Shard(NamedTuple):
    """One shard."""

    name: str = HOME  #: the name of its entry in the settings, or :data:`HOME`
    #: The number of the shard among those of its entry, from 0; 0 if that is one shard.
    number: int = 0
    #: The number of shards of its entry; None if that is one shard for all keys.
    by_key: int | None = None

    def __str__(self) -> str:
        return self.name if self.by_key is None else f"{self.name}/{self.number}"


HOME_SHARD = Shard()


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One entry of the settings: one shard, or one for each of some ranges of keys."""

    name: str
    patterns: tuple[str, ...]  #: the names of its limits; ``*`` stands for any text
    #: The number of shards among which the keys of a limit are divided; None: one shard.
    by_key: int | None = None
    #: The URL of its server; None: that of the home shard.
    url: str | None = field(default=None, repr=False)  # it may contain a password

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of the entry."""
        return tuple(Shard(self.name, number, self.by_key) for number in range(self.by_key or 1))

    def shard_of(self, ref: LimitRef) -> Shard:
        """Return the shard of a limit, or of one key of it.

        The shard depends on the key alone, so one task may use several limits with the same key.

        Raises:
            ConfigurationError: The limit is divided by key, and has none here.
        """
        if self.by_key is None:
            return Shard(self.name)
        if ref.key is None:
            raise ConfigurationError(
                f"limit {ref.name!r} is in shard {self.name!r}, which divides it by key: it has no "
                f"state without a key; name a key, as in '{ref.name}:{{tenant_id}}' or "
                f"limiter[{ref.name!r}, 42]"
            )
        digest = blake2b(ref.key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return Shard(self.name, int.from_bytes(digest, "big") % self.by_key, self.by_key)


@dataclass(frozen=True)
class ShardMap:
    """The shard of each limit."""

    #: The entries of the settings, by name.
    entries: Mapping[str, ShardEntry] = field(default_factory=dict)
    #: Where limits really are, if it is known: the name of each limit and of its entry, or
    #: :data:`HOME`.
    assigned: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _patterns(self) -> Sequence[tuple[re.Pattern[str], ShardEntry]]:
        return [
            (compile_route(pattern), entry)
            for entry in self.entries.values()
            for pattern in entry.patterns
        ]

    def entry_of(self, name: str) -> ShardEntry | None:
        """Return the entry of a limit; None for the home shard.

        Raises:
            ConfigurationError: The limit is in a shard that the settings do not name.
        """
        assigned = self.assigned.get(name)
        if assigned == HOME:
            return None
        if assigned is not None:
            if assigned not in self.entries:
                raise OtherShardError(name, assigned)
            return self.entries[assigned]
        return next((entry for found, entry in self._patterns if found.match(name)), None)

    def shard_of(self, ref: LimitRef) -> Shard:
        """Return the shard of a limit, or of one key of it.

        Raises as :meth:`entry_of` and :meth:`ShardEntry.shard_of`.
        """
        entry = self.entry_of(ref.name)
        return HOME_SHARD if entry is None else entry.shard_of(ref)

    def shard_of_all(self, refs: Iterable[LimitRef]) -> Shard:
        """Return the one shard of all limits of a call.

        Raises:
            ConfigurationError: They are in two shards. Else as :meth:`shard_of`.
        """
        found: dict[Shard, LimitRef] = {}
        for ref in refs:
            found.setdefault(self.shard_of(ref), ref)
        if len(found) > 1:
            shown = [(str(shard), repr(ref_text(ref))) for shard, ref in found.items()]
            raise _two_shards_error(*shown[:2])
        return next(iter(found), HOME_SHARD)

    def check_templates(self, templates: Iterable[KeyTemplate]) -> None:
        """Check that every call with these limits has all of them in one shard.

        Raises:
            ConfigurationError: They are in two shards; or an entry divides two of them by key, and
                their keys are made of different arguments. Else as :meth:`shard_of`.
        """
        found: dict[object, tuple[str, str]] = {}
        for template in templates:
            entry = self.entry_of(template.name)
            shard: object
            if entry is None or entry.by_key is None or not template.arguments:
                ref = None if template.arguments else template.ref()
                shard = self.shard_of(ref or LimitRef(template.name, None))
                name = str(shard)
            else:  # of each call by its key
                name, key = entry.name, template.text.partition(":")[2].replace("?}", "}")
                shard = name, key
            found.setdefault(shard, (name, repr(template.text)))
        if len(found) > 1:
            raise _two_shards_error(*list(found.values())[:2])

    def shards_of(self, ref: LimitRef) -> tuple[Shard, ...]:
        """Return the shards that have a limit: all of its entry if it is divided by key.

        Raises as :meth:`entry_of`.
        """
        entry = self.entry_of(ref.name)
        if entry is None:
            return (HOME_SHARD,)
        return entry.shards if ref.key is None else (entry.shard_of(ref),)


def parse_shards(written: Any, setting: str = "throttle_shards") -> ShardMap:
    """Read the shards as the module describes them; ``setting``: their name, for messages.

    Raises:
        ConfigurationError: An entry is wrong, or two entries have the same limit.
    """
    if not isinstance(written, Mapping):
        raise ConfigurationError(
            f'{setting} is {shown(written)}; allowed: a dict such as {{"mail": {_EXAMPLE}}}'
        )
    entries = [_read_entry(name, entry, setting) for name, entry in written.items()]
    patterns = [(entry.name, pattern) for entry in entries for pattern in entry.patterns]
    for (one, first), (other, second) in combinations(patterns, 2):
        if one != other and _overlap(first, second):
            raise ConfigurationError(
                f"{setting}[{one!r}] has {first!r}, and {setting}[{other!r}] has {second!r}: a "
                "name that both match would be in two shards; allowed: patterns without a name in "
                "common"
            )
    return ShardMap({entry.name: entry for entry in entries})


def _read_entry(name: Any, written: Any, setting: str) -> ShardEntry:
    where = f"{setting}[{shown(name)}]"
    try:
        check_name(name)
    except LimitError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if name == HOME:
        raise ConfigurationError(f"{where}: the home shard has all other limits; leave it out")
    if not isinstance(written, Mapping):
        raise ConfigurationError(f"{where} is {shown(written)}; allowed: a dict such as {_EXAMPLE}")
    unknown = sorted(set(written) - set(_WORDS), key=str)
    if unknown:
        allowed = ", ".join(map(repr, _WORDS))
        raise ConfigurationError(f"{where} has {shown(unknown[0])}; allowed: {allowed}")
    by_key, url = written.get("by_key"), written.get("url")
    if by_key is not None and (type(by_key) is not int or not 1 <= by_key <= MAX_BY_KEY):
        raise ConfigurationError(
            f"{where} has by_key {shown(by_key)}; allowed: a whole number from 1 to {MAX_BY_KEY}"
        )
    if url is not None and (not isinstance(url, str) or not url):
        raise ConfigurationError(f"{where} has url {shown(url)}; allowed: the URL of a server")
    patterns = dict.fromkeys(_read_patterns(written.get("limits"), where))
    return ShardEntry(name, tuple(patterns), by_key, url)


def _read_patterns(written: Any, where: str) -> Iterator[str]:
    if not isinstance(written, (list, tuple)) or not written:
        raise ConfigurationError(
            f"{where} has limits {shown(written)}; allowed: a list of names or patterns, such as "
            f"{_EXAMPLE}"
        )
    for pattern in written:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise ConfigurationError(
                f"{where} has the limit {shown(pattern)}; allowed: the name of a limit without a "
                "key, in which * stands for any text"
            )
        yield pattern


def _overlap(one: str, other: str) -> bool:
    """Whether some text matches both patterns."""
    # Row by row: whether what follows position i of one and j of the other has a common text.
    row = [not other[j:].strip("*") for j in range(len(other) + 1)]
    for char in reversed(one):
        below, row = row, [False] * (len(other) + 1)
        row[-1] = char == "*" and below[-1]
        for j in reversed(range(len(other))):
            if "*" in (char, other[j]):
                row[j] = below[j] or row[j + 1]
            else:
                row[j] = char == other[j] and below[j + 1]
    return row[0]


def _two_shards_error(one: tuple[str, str], other: tuple[str, str]) -> ConfigurationError:
    """Return the error about two limits: the text of the shard, and that of the limit."""
    shards = " and ".join(f"{limit} in shard '{shard}'" for shard, limit in (one, other))
    write = (
        "give them the same key"
        if one[0].partition("/")[0] == other[0].partition("/")[0]
        else "name both in the same entry of throttle_shards, or in none"
    )
    return ConfigurationError(
        f"limits of two shards: {shards}; one call decides in one shard: {write}, or use them in "
        "two calls"
    )
