"""The parts of a fan-out: one in each shard that has limits of its tasks, with a record of its own.

Each record has the names of all shards with a part: a new part is written to them before it gets a
task. So whoever reads one record knows them all, whatever shard cannot be reached. The first record
is looked for in all shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from celery_throttle.errors import StoreUnavailableError, UnknownFanOutError
from celery_throttle.limiter.sharded import at_once
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.fan_outs import Progress, merge_progress, read_fan_out
from celery_throttle.operations.fan_outs import unknown_fan_out_error
from celery_throttle.tasks.app_limits import AppLimits


class FanOutPart(NamedTuple):
    """A part of a fan-out, as its record states it."""

    limits: AppLimits  #: of the shard
    progress: Progress
    marked: int  #: the number of ended tasks whose results are marked after a cancel
    shards: tuple[str, ...]  #: those with a part, as far as this record states it


class FanOutParts:
    """Reads the parts of a fan-out, those of several shards at the same time.

    ``shards``: names of those in which it is known to be; None to look for it in all shards.

    Attributes:
        found: its parts, by the names of their shards.
        unreachable: why a shard cannot be read, by its name.
        missing: shards of which the record has expired, or is lost.
    """

    def __init__(self, throttle: AppLimits, name: str, shards: Iterable[str] | None = None) -> None:
        self._name = name
        self.found: dict[str, FanOutPart] = {}
        self.unreachable: dict[str, StoreUnavailableError] = {}
        self.missing: set[str] = set()
        every = throttle.parts_by_name
        pending, seen = [*(every if shards is None else shards)], set[str]()
        listed = set[str]() if shards is None else {*pending}
        while pending:
            at_once(partial(self._read, every), pending)
            seen.update(pending)
            listed.update(*(part.shards for part in self.found.values()))
            pending = sorted(listed - seen)
        self.found = {shard: self.found[shard] for shard in every if shard in self.found}
        self.missing &= listed
        if self.found:  # all others have no part
            self.unreachable = {
                shard: error for shard, error in self.unreachable.items() if shard in listed
            }

    def _read(self, every: Mapping[str, AppLimits], shard: str) -> None:
        """Read the part in a shard, or why there is none."""
        limits = every.get(shard)
        if limits is None:
            text = f"shard {shard!r} is not in throttle_shards of this process"
            self.unreachable[shard] = StoreUnavailableError(text)
            return
        try:
            progress, record = limits.run_plan(read_fan_out(limits.observer, self._name))
        except UnknownFanOutError:
            self.missing.add(shard)
        except StoreUnavailableError as error:
            self.unreachable[shard] = error
        else:
            shards = tuple(record.get("shards", "").split())
            self.found[shard] = FanOutPart(limits, progress, int(record.get("marked", 0)), shards)

    @property
    def shards(self) -> set[str]:
        """The names of all shards that have, or had, a part."""
        return {*self.found, *self.unreachable, *self.missing}

    def check_found(self) -> None:
        """Raise an error if there is no part.

        Raises:
            UnknownFanOutError: no shard has one.
            StoreUnavailableError: a shard that may have one cannot be reached.
        """
        if not self.found:
            self.check_reachable()
            raise unknown_fan_out_error(self._name)

    def check_reachable(self) -> None:
        """Raise StoreUnavailableError if a part cannot be reached."""
        for error in self.unreachable.values():
            raise error

    def progress(self) -> Progress:
        """Return the progress of the whole fan-out."""
        parts = [part.progress for part in self.found.values()]
        return merge_progress(parts, sorted(self.unreachable), sorted(self.missing))


def shard_of_limits(throttle: AppLimits, refs: Sequence[LimitRef]) -> str:
    """Return the name of the shard of some limits; empty without shards.

    While the home shard cannot be reached, this process goes by what it knows. If that is wrong, it
    learns so when it sends the first task: that shard has no definition of the limits.

    Raises:
        ConfigurationError: they are in two shards, or in one that this process lacks.
        StoreError: one of them is being moved.
    """
    if throttle.parts is None:
        return ""
    for name in dict.fromkeys(ref.name for ref in refs):
        with suppress(StoreUnavailableError):
            throttle.run_plan(throttle.parts.locate(name))
    return str(throttle.parts.shard_map.shard_of_all(refs))
