"""The fields of actions: their texts, and the values that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_throttle.errors import LimitError, LimitValueError, shown
from celery_throttle.limits.duration import MICROSECONDS, parse_duration
from celery_throttle.limits.limit import Limit


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an action.

    Attributes:
        name: its name.
        label: what it is, in words.
        hint: what may be written.
        parse: returns its value; LimitError: the text cannot be used.
        lines: the lines of text that it shows.
        default: what an empty field means, in words; None if it must not be empty.
    """

    name: str
    label: str
    hint: str
    parse: Callable[[str], Any]
    lines: int = 1
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of an action as a user filled them in.

    Attributes:
        texts: the text of each field.
        values: the value of each field; None if it is empty, or has an error.
        errors: what is wrong with a field.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    errors: Mapping[str, str]


def read_form(fields: Sequence[Field], given: Mapping[str, str]) -> Form:
    """Parse the texts of fields."""
    texts = {field.name: given.get(field.name, "").strip() for field in fields}
    values: dict[str, Any] = dict.fromkeys(texts)
    errors = {}
    for field in fields:
        text = texts[field.name]
        if not text:
            if field.default is None:
                errors[field.name] = f"This is empty; allowed: {field.hint}"
            continue
        try:
            values[field.name] = field.parse(text)
        except LimitError as error:
            errors[field.name] = str(error)
    return Form(texts, values, errors)


def parse_seconds(text: str) -> float:
    """Parse a duration; return seconds."""
    return parse_duration(text) / MICROSECONDS


def parse_limits(text: str) -> list[Limit]:
    """Parse limits, one in each line."""
    return [Limit.of(line.strip()) for line in text.splitlines() if line.strip()]


def parse_weight(text: str) -> int:
    """Parse a weight."""
    try:
        return int(text)
    except ValueError:  # also for thousands of digits
        raise LimitValueError(f"weight {shown(text)} is no number; allowed: 1 to 100") from None
