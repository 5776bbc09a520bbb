"""What tests of layers share."""

from __future__ import annotations

LIMITS_OF_EACH_ALGORITHM = [
    "10/s burst 5",
    "1/s burst 3",
    "2/s burst 4 using token-bucket",
    "2/s using leaky-bucket",
    "2/s burst 3 using leaky-queue",
    "4/5s using fixed-window",
    "4/5s using fixed-window from first-request",
    "100/day using fixed-window in Europe/Berlin",
    "6/8s using sliding-log",
    "6/8s using sliding-window parts 4",
    "adaptive 1..10/s",
]
