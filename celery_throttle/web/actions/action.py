"""What an action is: its fields, its consequence, and the call that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_throttle.observe.values import Preview
from celery_throttle.operations.author import Author
from celery_throttle.web.actions.forms import Field, parse_seconds
from celery_throttle.web.site import Site

#: The values of the fields of an action, by name.
Values = Mapping[str, Any]

#: How a duration is written.
DURATION_HINT = "a duration, such as 10m or 1h"

#: How long a pause lasts.
PAUSE_SECONDS = Field(
    "for", "Duration", DURATION_HINT, parse_seconds, default="until it is resumed"
)


class TimeIsUpError(Exception):
    """An action has used up the time of its request. What it has done so far is complete."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """What an action will do.

    Attributes:
        text: what it does, in words.
        preview: the effect on the expected end of the waiting tasks.
        found: the ``WaitingCount`` of the tasks that it takes out of lines.
    """

    text: str = ""
    preview: Preview | None = None
    found: Any = None


@dataclass(frozen=True, slots=True)
class Action:
    """What a user can do to a subject: a limit, one key of it, or a fan-out.

    Attributes:
        name: its name, one of ``security.ACTIONS``.
        preview: returns its consequence for a subject, with the values of its fields.
        run: carries it out. TimeIsUpError: a part of it is left.
        fields: what a user fills in before the preview.
        needs_app: whether a limiter without an app cannot do it.
        is_dangerous: whether no other action brings back what it removes.
        part: what of the subject it is done to, if not the whole.
        describe: returns what the form shows of a subject beside its fields.
    """

    name: str
    preview: Callable[[Site, Any, Values], Consequence]
    run: Callable[[Site, Any, Values, Author], None]
    fields: tuple[Field, ...] = ()
    needs_app: bool = False
    is_dangerous: bool = False
    part: str = ""
    describe: Callable[[Site, Any], str] = lambda _site, _subject: ""
