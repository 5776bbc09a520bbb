"""The packed form of definitions, which the scripts read; see ``definition.lua``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from celery_throttle.errors import LimitSyntaxError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit, find_strictest, format_limits
from celery_throttle.limits.rate import Concurrency
from celery_throttle.limits.requirement import attach_shadows

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

#: Added to the byte of the first limit if shadow limits follow the last one.
_HAS_SHADOWS = 64

_WITHOUT_NUMBERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")

# The second part of a definition, see `definition.lua`.
_NAME = struct.Struct("<ddB")
_HEAD = struct.Struct("<BH")
_SHADOWS = struct.Struct("<BH")
_SEPARATOR = "; "
_END = b"\0"


def pack(limits: Sequence[Limit], now: int, key_cap: str) -> bytes:
    """Pack the limits of a name, with the calendar windows around ``now`` (us)."""
    max_keys = find_strictest(limit.max_keys for limit in limits)
    max_waiting = find_strictest(limit.max_waiting for limit in limits)
    chunks = [_NAME.pack(max_keys or 0, max_waiting or 0, len(limits))]
    shadows = [shadow for limit in limits for shadow in limit.shadows]
    tags = [TAGS[limit.algorithm] for limit in limits]
    tags[0] |= _HAS_SHADOWS if shadows else 0
    chunks += (_pack_numbers(*pair, now) for pair in zip(tags, limits, strict=True))
    if shadows:
        numbers = b"".join(_pack_numbers(TAGS[one.algorithm], one, now) for one in shadows)
        chunks.append(_SHADOWS.pack(len(shadows), len(numbers)) + numbers)
    chunks.append(_SEPARATOR.join(format_limits(limits)).encode())
    chunks += (_END, b"" if max_keys is None else key_cap.encode())
    return b"".join(chunks)


def unpack(packed: bytes) -> tuple[Limit, ...]:
    """Return the limits; LimitError if the definition is malformed, or of a later version."""
    try:
        *_, limits = _NAME.unpack_from(packed)
        offset = _NAME.size
        has_shadows = packed[offset] & _HAS_SHADOWS
        for _ in range(limits):
            _, count = _HEAD.unpack_from(packed, offset)
            offset += _HEAD.size + 8 * count
        if has_shadows:
            offset += _SHADOWS.size + _SHADOWS.unpack_from(packed, offset)[1]
        texts, _, _ = packed[offset:].partition(_END)
        return attach_shadows(tuple(map(Limit.parse, texts.decode().split(_SEPARATOR))))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise LimitSyntaxError(f"{shown(packed)} is not a packed definition: {error}") from None


def _pack_numbers(tag: int, limit: Limit, now: int) -> bytes:
    numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
    return _HEAD.pack(tag, len(numbers)) + struct.pack(f"<{len(numbers)}d", *numbers)


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
