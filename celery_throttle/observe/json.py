"""The values of this package as JSON: objects, times in ISO 8601, and null for infinity."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from math import isfinite
from typing import Any


def to_json(value: Any) -> Any:
    """Return a value made of lists, dicts, texts and numbers, for ``json.dumps``."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
