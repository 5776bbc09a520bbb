"""The shard of a fan-out: that of the limits of all its tasks. It has the record of the fan-out.

Nothing else stores where a fan-out is: each shard is asked for the record, the home shard first. So
a fan-out is sent and followed whatever other shard cannot be reached, the home shard included.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from celery_throttle.errors import (
    FanOutError,
    StoreUnavailableError,
    UnknownFanOutError,
    shown,
)
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.fan_outs import read_fan_out
from celery_throttle.operations.fan_outs import unknown_fan_out_error
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import FAN_OUT_SHARD_HEADER


class RecordSearch:
    """Looks for the record of a fan-out in all shards.

    If two processes have begun it at the same moment, one shard may have an empty record.

    Args:
        throttle: the limits of the app.
        name: that of the fan-out.
        besides: the part of a shard that is left out.

    Attributes:
        found: the part of the shard that has it; None if no shard that can be reached has it.
        error: why a shard could not be asked; None if there is none such.
    """

    def __init__(self, throttle: AppLimits, name: str, besides: AppLimits | None = None) -> None:
        self.found: AppLimits | None = None
        self.error: StoreUnavailableError | None = None
        for part in throttle.app_parts if besides is None else _others(throttle, besides):
            try:
                _, _, record = part.run_plan(read_fan_out(part.observer, name))
            except UnknownFanOutError:
                continue
            except StoreUnavailableError as error:
                self.error = self.error or error
                continue
            if int(record.get("sent", 0)):
                self.found = part
                return
            self.found = self.found or part


def _others(throttle: AppLimits, part: AppLimits) -> list[AppLimits]:
    return [each for each in throttle.app_parts if each is not part]


def find_fan_out(throttle: AppLimits, name: str) -> AppLimits:
    """Return the part of the shard that has a fan-out.

    Raises:
        UnknownFanOutError: no shard has it.
        StoreUnavailableError: a shard cannot be reached, and no other shard has it.
    """
    search = RecordSearch(throttle, name)
    if search.found is None:
        raise search.error or unknown_fan_out_error(name)
    return search.found


def part_of_limits(throttle: AppLimits, refs: Iterable[LimitRef]) -> AppLimits:
    """Return the part of the shard of some limits.

    While the home shard cannot be reached, this process goes by what it knows. If that is wrong, it
    learns so when it sends the first task: that shard has no definition of the limits.

    Raises:
        ConfigurationError: they are in two shards, or in one that this process lacks.
        StoreError: one of them is being moved.
    """
    refs = tuple(refs)
    if throttle.parts is not None:
        for name in dict.fromkeys(ref.name for ref in refs):
            with suppress(StoreUnavailableError):
                throttle.run_plan(throttle.parts.locate(name))
    return throttle.part_of(refs)


def shard_name(throttle: AppLimits, part: AppLimits) -> str:
    """Return the name of the shard of a part."""
    return next(name for name, each in throttle.parts_by_name.items() if each is part)


def shard_headers(throttle: AppLimits, part: AppLimits) -> dict[str, str]:
    """Return the headers by which a worker finds the record again, wherever it gets the task.

    The limits of the task may be in another shard by then.
    """
    return {FAN_OUT_SHARD_HEADER: shard_name(throttle, part)}


def check_shard(throttle: AppLimits, name: str, own: AppLimits, of_task: AppLimits) -> None:
    """Raise FanOutError if the limits of a task are in another shard than its fan-out."""
    if own is not of_task:
        shard, other = shard_name(throttle, own), shard_name(throttle, of_task)
        raise FanOutError(
            f"fan-out {shown(name)} is in shard {shard!r}, and the limits of this task are in "
            f"shard {other!r}; allowed: tasks whose limits are in one shard; send those of each "
            "shard as a fan-out with a name of its own"
        )
