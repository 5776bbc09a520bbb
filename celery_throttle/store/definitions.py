"""Definitions as the scripts store and read them; see ``records.lua``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from celery_throttle.algorithms.definition import decisive_fields
from celery_throttle.errors import LimitSyntaxError, shown
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency
from celery_throttle.limits.requirement import (
    attach_shadows,
    find_strictest,
    format_limits,
    has_slots,
)

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

# The numbers of a definition, see `definition.lua`.
_NAME = struct.Struct("<ddBB")
_HEAD = struct.Struct("<BH")
_SEPARATOR = "; "


class Definition(NamedTuple):
    """The limits of a name or key, as arguments of a script; see ``definitions.lua``.

    Attributes:
        numbers: what decisions read.
        text: the limits.
        identity: equal for limits that make the same decisions.
        has_slots: 1 if one of the limits has slots, else 0.
    """

    numbers: bytes = b""
    text: str = ""
    identity: str = ""
    has_slots: int = 0


#: The arguments that stand for no definition.
NO_DEFINITION = Definition()


def pack(limits: Sequence[Limit], now: int, key_cap: str) -> Definition:
    """Return the definition of limits, with the calendar windows around ``now`` (us)."""
    max_keys = find_strictest(limit.max_keys for limit in limits)
    max_waiting = find_strictest(limit.max_waiting for limit in limits)
    shadows = [shadow for limit in limits for shadow in limit.shadows]
    chunks = [_NAME.pack(max_keys or 0, max_waiting or 0, len(limits), len(shadows))]
    chunks += (_pack_numbers(limit, now) for limit in (*limits, *shadows))
    chunks.append(b"" if max_keys is None else key_cap.encode())
    return Definition(
        b"".join(chunks),
        _SEPARATOR.join(format_limits(limits)),
        blake2b(repr([*map(decisive_fields, limits)]).encode(), digest_size=8).hexdigest(),
        int(any(map(has_slots, limits))),
    )


def unpack(text: bytes) -> tuple[Limit, ...]:
    """Return the limits of a stored text; LimitError if it is malformed."""
    try:
        return attach_shadows(tuple(map(Limit.parse, text.decode().split(_SEPARATOR))))
    except UnicodeDecodeError as error:
        raise LimitSyntaxError(f"{shown(text)} is not a definition: {error}") from None


def _pack_numbers(limit: Limit, now: int) -> bytes:
    numbers = [limit.burst, *limit.ticks, *_own_numbers(limit, now)]
    return _HEAD.pack(TAGS[limit.algorithm], len(numbers)) + struct.pack(
        f"<{len(numbers)}d", *numbers
    )


def _own_numbers(limit: Limit, now: int) -> list[int]:
    if isinstance(limit.rate, Concurrency):
        return [limit.lowest, limit.latency_us or 0] if limit.lowest else []
    period = limit.rate.period_us
    if limit.algorithm == "sliding-log":
        return [period]
    if limit.algorithm == "adaptive":
        return [limit.lowest_share, limit.latency_us or 0, limit.rate.count, period]
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
