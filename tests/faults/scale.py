"""How often each fault is repeated: ``FAULTS_SCALE`` times as often as in CI."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("FAULTS_SCALE", "1"))


def scaled(count: int) -> int:
    """So many, and one at least."""
    return max(1, round(count * SCALE))
