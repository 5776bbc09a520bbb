"""What the scripts on the server read of a limit: numbers, packed; see ``definition.lua``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from celery_throttle.errors import LimitSyntaxError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit, strictest
from celery_throttle.limits.rate import Concurrency

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
    "adaptive": 9,
}

# Of the name: how many keys may be in use, how many tasks may wait (0 for any number), how many
# limits. Of each limit: its tag, how many numbers; then these. After all, the limits as text; then,
# if keys are counted, where.
_NAME = struct.Struct("<ddB")
_HEAD = struct.Struct("<BH")
_BETWEEN = "; "
_END = b"\0"


def pack(limits: Sequence[Limit], now: int, crowd: str) -> bytes:
    """Pack the limits of a name for the scripts.

    Args:
        limits: up to 255.
        now: a time in microseconds, around which the windows of a calendar are told.
        crowd: the key where the keys of the name are counted, if there may be only so many.
    """
    max_keys = strictest(limit.max_keys for limit in limits)
    max_waiting = strictest(limit.max_waiting for limit in limits)
    chunks = [_NAME.pack(max_keys or 0, max_waiting or 0, len(limits))]
    for limit in limits:
        numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
        chunks.append(_HEAD.pack(TAGS[limit.algorithm], len(numbers)))
        chunks.append(struct.pack(f"<{len(numbers)}d", *numbers))
    chunks.append(_BETWEEN.join(map(str, limits)).encode())
    if max_keys is not None:
        chunks += (_END, crowd.encode())
    return b"".join(chunks)


def unpack(packed: bytes) -> tuple[Limit, ...]:
    """The limits that :func:`pack` was given.

    Raises:
        LimitError: it was not, or by a version of the code that knows more.
    """
    try:
        *_, limits = _NAME.unpack_from(packed)
        place = _NAME.size
        for _ in range(limits):
            _, count = _HEAD.unpack_from(packed, place)
            place += _HEAD.size + 8 * count
        texts, _, _ = packed[place:].partition(_END)
        return tuple(Limit.parse(text) for text in texts.decode().split(_BETWEEN))
    except (struct.error, UnicodeDecodeError) as error:
        raise LimitSyntaxError(f"{shown(packed)} is no packed definition: {error}") from None


def _own_numbers(limit: Limit, now: int) -> list[int]:
    if isinstance(limit.rate, Concurrency):
        return []
    period = limit.rate.period_us
    if limit.algorithm == "sliding-log":
        return [period]
    if limit.algorithm == "adaptive":
        return [limit.floor, limit.latency_us or 0]
    if limit.algorithm == "sliding-window":
        return [period // limit.parts, limit.parts, int(limit.oldest == "weighted")]
    if limit.algorithm == "fixed-window":
        return _windows(limit, period, now)
    return []


def _windows(limit: Limit, period: int, now: int) -> list[int]:
    if isinstance(limit.window, Calendar) and limit.period:
        return [0, *limit.window.starts(limit.period, now, _WINDOWS)]
    return [period, int(limit.window == FIRST_REQUEST)]
