"""How often each fault is repeated, and when it comes: for ``make faults``.

``FAULTS_SCALE``: times as often as in CI. ``FAULTS_SEED``: for moments that are other ones.
"""

from __future__ import annotations

import os
import random

SCALE = float(os.environ.get("FAULTS_SCALE", "1"))
SEED = os.environ.get("FAULTS_SEED", "0")


def scaled(count: int) -> int:
    """So many, and one at least."""
    return max(1, round(count * SCALE))


def moments(name: str) -> random.Random:
    """Dice that fall the same way each time for the same seed."""
    return random.Random(f"{name} {SEED}")
