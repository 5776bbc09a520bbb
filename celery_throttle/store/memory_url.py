"""The URL of limits in the memory of one process, for tests and notebooks. Imports nothing."""

from __future__ import annotations

from typing import Any

MEMORY_URL = "memory://"


def is_memory_url(url: Any) -> bool:
    """Whether a URL means the memory of this process."""
    return isinstance(url, str) and url == MEMORY_URL
