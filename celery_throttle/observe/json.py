"""Values as JSON: dataclasses as objects, times as ISO 8601 in UTC, infinity as null."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from math import isfinite
from typing import Any

from celery_throttle.observe.status.tasks import TaskStatus
from celery_throttle.observe.totals import Totals
from celery_throttle.observe.values import LimitDetails

#: Digits of numbers behind the point: times are whole microseconds.
_DIGITS = 6


def _objects(*names: str) -> Callable[[Sequence[Sequence[Any]]], Any]:
    return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]


def _object(*names: str) -> Callable[[Sequence[Any] | None], Any]:
    return lambda row: None if row is None else dict(zip(names, row, strict=True))


#: Fields whose tuples become objects.
_SPECIAL: Mapping[tuple[type, str], Callable[[Any], Any]] = {
    (Totals, "refused"): dict,
    (Totals, "dropped"): dict,
    (LimitDetails, "top_keys"): _objects("key", "waiting"),
    (LimitDetails, "top_paused_keys"): _objects("key", "until"),
    (TaskStatus, "limits"): _objects("limit", "key", "cost"),
    (TaskStatus, "blocked_by"): _object("limit", "key"),
}


def to_json(value: Any) -> Any:
    """Return what :func:`json.dumps` writes for a value."""
    if is_dataclass(value):
        return {field.name: _field(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, datetime):
        utc = value.astimezone(timezone.utc).replace(tzinfo=None)
        return f"{utc.isoformat(timespec='milliseconds')}Z"
    if isinstance(value, float):
        return round(value, _DIGITS) if isfinite(value) else None
    return value


def _field(value: Any, name: str) -> Any:
    special = _SPECIAL.get((type(value), name))
    found = getattr(value, name)
    return to_json(special(found) if special else found)
