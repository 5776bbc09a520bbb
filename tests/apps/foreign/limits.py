"""What users of the foreign app write: its settings, and a module that adds limits to it."""

from __future__ import annotations

import os

CONFIG_OPTIONS = {
    "imports": ["tests.apps.foreign.attach"],
    "throttle_rules": os.environ["FOREIGN_RULES"],
    "throttle_url": os.environ["FOREIGN_BROKER"],
}
