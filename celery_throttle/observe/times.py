"""Times of the server as values of Python."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


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
