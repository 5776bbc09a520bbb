"""What the scripts on the server read of a limit: numbers, packed; see ``lua/definition.lua``."""

from __future__ import annotations

import struct

from celery_throttle.calendars import Calendar
from celery_throttle.limits import FIRST_REQUEST, Concurrency, Limit

#: Windows of a calendar that are told ahead. When they run out, the script asks for more.
_WINDOWS = 64

#: The byte that stands for each algorithm, in definitions and at the head of states.
TAGS = {
    "gcra": b"g",
    "token-bucket": b"t",
    "leaky-bucket": b"l",
    "leaky-queue": b"q",
    "fixed-window": b"f",
    "sliding-log": b"s",
    "sliding-window": b"w",
    "concurrency": b"c",
}

# Tag, how many numbers; then the numbers, then the limit as text.
_HEAD = struct.Struct("<cH")


def pack(limit: Limit, now: int) -> bytes:
    """Pack a limit for the scripts.

    Args:
        limit: the limit.
        now: a time in microseconds, around which the windows of a calendar are told.
    """
    numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
    head = _HEAD.pack(TAGS[limit.algorithm], len(numbers))
    return head + struct.pack(f"<{len(numbers)}d", *numbers) + str(limit).encode()


def text_of(packed: bytes) -> str:
    """The limit as text, out of what :func:`pack` gave."""
    _, count = _HEAD.unpack_from(packed)
    return packed[_HEAD.size + 8 * count :].decode()


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
