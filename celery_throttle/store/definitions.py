"""The packed form of definitions, which the scripts read; see ``definition.lua``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from celery_throttle.errors import LimitSyntaxError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit, find_strictest
from celery_throttle.limits.rate import Concurrency

#: Calendar windows in a definition. When they run out, a script replies that it needs more.
_CALENDAR_WINDOWS = 64

#: The byte for each algorithm, in definitions and at the start of states. Meters first.
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

_WITHOUT_NUMBERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")

# The second part of a definition, see `definition.lua`.
_NAME = struct.Struct("<ddB")
_HEAD = struct.Struct("<BH")
_SEPARATOR = "; "
_END = b"\0"


def pack(limits: Sequence[Limit], now: int, key_cap: str) -> bytes:
    """Pack the limits of a name, with the calendar windows around ``now`` (us)."""
    max_keys = find_strictest(limit.max_keys for limit in limits)
    max_waiting = find_strictest(limit.max_waiting for limit in limits)
    chunks = [_NAME.pack(max_keys or 0, max_waiting or 0, len(limits))]
    for limit in limits:
        numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
        chunks.append(_HEAD.pack(TAGS[limit.algorithm], len(numbers)))
        chunks.append(struct.pack(f"<{len(numbers)}d", *numbers))
    chunks.append(_SEPARATOR.join(map(str, limits)).encode())
    chunks += (_END, b"" if max_keys is None else key_cap.encode())
    return b"".join(chunks)


def unpack(packed: bytes) -> tuple[Limit, ...]:
    """Return the limits; LimitError if the definition is malformed, or of a later version."""
    try:
        *_, limits = _NAME.unpack_from(packed)
        offset = _NAME.size
        for _ in range(limits):
            _, count = _HEAD.unpack_from(packed, offset)
            offset += _HEAD.size + 8 * count
        texts, _, _ = packed[offset:].partition(_END)
        return tuple(Limit.parse(text) for text in texts.decode().split(_SEPARATOR))
    except (struct.error, UnicodeDecodeError) as error:
        raise LimitSyntaxError(f"{shown(packed)} is not a packed definition: {error}") from None


def _own_numbers(limit: Limit, now: int) -> list[int]:
    if isinstance(limit.rate, Concurrency):
        return []
    period = limit.rate.period_us
    if limit.algorithm == "sliding-log":
        return [period]
    if limit.algorithm == "adaptive":
        return [limit.lowest_share, limit.latency_us or 0]
    if limit.algorithm == "sliding-window":
        return [period // limit.parts, limit.parts, int(limit.oldest == "weighted")]
    if limit.algorithm == "fixed-window":
        return _windows(limit, period, now)
    if limit.algorithm in _WITHOUT_NUMBERS:
        return []
    raise NotImplementedError(f"the numbers of {limit.algorithm} in definitions")


def _windows(limit: Limit, period: int, now: int) -> list[int]:
    if isinstance(limit.window, Calendar) and limit.calendar_period:
        return [0, *limit.window.starts(limit.calendar_period, now, _CALENDAR_WINDOWS)]
    return [period, int(limit.window == FIRST_REQUEST)]
