"""What the readers of the status use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any, TypeVar

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import HOME
from celery_throttle.operations.plan import Plan, ReadContext, read_call
from celery_throttle.store.script import Argument

V = TypeVar("V")

#: Makes a field of a merged value from that field of all parts.
FieldMerge = Callable[[list[Any]], Any]

#: Seconds for which a queue counts as consumed after a worker has reported that. Workers do so
#: every ten seconds at least.
CONSUMED_SECONDS = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Observer(ReadContext):
    """The limits of one shard, for those who read their status and change no limit.

    Each plan of this package is a function whose first argument is an observer.
    """

    #: Makes the plan that raises UnknownLimitError if neither the code nor the server has a limit.
    check_known: Callable[[LimitRef], Plan[None]]
    has_server: bool = True  #: if not, no task waits
    shard: str = HOME  #: its name


def read_keys(observer: Observer, *commands: tuple[Argument, ...]) -> Plan[tuple[int, list[Any]]]:
    """Run commands that only read, in one step: tuples of a name, a key and arguments.

    Returns the server's time in microseconds, and the reply of each command.
    """
    now, *replies = yield read_call(observer.now(), *commands)
    return int(now), replies


def at_time(us: float) -> datetime:
    """Return a time of the server, in microseconds since 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=round(us))


def at_time_or_none(us: float | bytes) -> datetime | None:
    """Return a time, None for 0 or an empty text, and for one that no calendar has."""
    number = float(us or 0)
    try:
        return at_time(number) if number else None
    except OverflowError:
        return None


def pair_up(flat: Sequence[bytes]) -> dict[str, str]:
    """Return a reply in which names and values alternate as a mapping of texts."""
    texts = [one.decode() for one in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def read_text(data: bytes) -> str:
    """Return text of a user, such as the id of a task, for people: odd bytes are escaped."""
    return data.decode("utf-8", "backslashreplace")


def merge_fields(parts: Sequence[V], **rules: FieldMerge) -> V:
    """Return the first of several parts, with the fields that have a rule merged from all parts."""
    fields = {name: rule([getattr(part, name) for part in parts]) for name, rule in rules.items()}
    first: Any = parts[0]
    merged: V = first._replace(**fields) if hasattr(first, "_replace") else replace(first, **fields)
    return merged


def find_highest(values: Iterable[Any]) -> Any:
    """Return the highest of the values that are not None; None if there is none."""
    return max((one for one in values if one is not None), default=None)


def join_items(lists: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    """Return the items of several lists, each once."""
    return tuple(dict.fromkeys(chain(*lists)))
