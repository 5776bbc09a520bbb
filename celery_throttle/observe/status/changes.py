"""The plan that reads the log of changes."""

from __future__ import annotations

from collections.abc import Sequence

from celery_throttle.observe.observer import Observer, read_keys
from celery_throttle.observe.times import at_time
from celery_throttle.observe.values import Change
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import Plan


def read_changes(
    observer: Observer, most: int = 100, before: str | None = None
) -> Plan[list[Change]]:
    """Return changes of limits, the newest first; ``before``: id of the one to begin behind."""
    first = "+" if before is None else f"({before}"
    command = "XREVRANGE", observer.keys.changes, first, "-", "COUNT", most
    _, (rows,) = yield from read_keys(observer, command)
    return [_read_change(change_id.decode(), fields) for change_id, fields in rows]


def _read_change(change_id: str, fields: Sequence[bytes]) -> Change:
    texts = [field.decode() for field in fields]
    about = dict(zip(texts[::2], texts[1::2], strict=True))
    return Change(
        id=change_id,
        at=at_time(int(about["at"])),
        action=about["action"],
        limit=about["limit"],
        old=about["old"],
        new=about["new"],
        author=Author.unpack(about["about"]),
        until=at_time(int(about["until"])) if "until" in about else None,
    )
