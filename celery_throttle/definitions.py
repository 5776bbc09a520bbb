"""What the scripts on the server read of a limit: numbers, packed; see ``lua/definition.lua``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from celery_throttle.calendars import Calendar
from celery_throttle.limits import FIRST_REQUEST, Concurrency, Limit

#: Windows of a calendar that are told ahead. When they run out, the script asks for more.
_WINDOWS = 64

#: The byte that stands for each algorithm, in definitions and at the head of states. Meters first.
TAGS = {
    "gcra": 1,
    "token-bucket": 2,
    "leaky-bucket": 3,
    "leaky-queue": 4,
    "fixed-window": 5,
    "sliding-log": 6,
    "sliding-window": 7,
    "concurrency": 8,
}

# Of each limit: its tag, how many numbers; then these. After all of them, the limits as text.
_HEAD = struct.Struct("<BH")
_BETWEEN = "; "


def pack(limits: Sequence[Limit], now: int) -> bytes:
    """Pack the limits of a name for the scripts.

    Args:
        limits: up to 255.
        now: a time in microseconds, around which the windows of a calendar are told.
    """
    chunks = [bytes([len(limits)])]
    for limit in limits:
        numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
        chunks.append(_HEAD.pack(TAGS[limit.algorithm], len(numbers)))
        chunks.append(struct.pack(f"<{len(numbers)}d", *numbers))
    return b"".join((*chunks, _BETWEEN.join(map(str, limits)).encode()))


def unpack(packed: bytes) -> tuple[Limit, ...]:
    """The limits that :func:`pack` was given."""
    place = 1
    for _ in range(packed[0]):
        _, count = _HEAD.unpack_from(packed, place)
        place += _HEAD.size + 8 * count
    return tuple(Limit.parse(text) for text in packed[place:].decode().split(_BETWEEN))


def _own_numbers(limit: Limit, now: int) -> list[int]:
    if isinstance(limit.rate, Concurrency):
        return []
    period = limit.rate.period_us
    if limit.algorithm == "sliding-log":
        return [period]
    if limit.algorithm == "sliding-window":
        return [period // limit.parts, limit.parts, int(limit.oldest == "weighted")]
    if isinstance(limit.window, Calendar) and limit.period:
        return [0, *limit.window.starts(limit.period, now, _WINDOWS)]
    if limit.algorithm == "fixed-window":
        return [period, int(limit.window == FIRST_REQUEST)]
    return []
