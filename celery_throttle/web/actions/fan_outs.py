"""The actions of a fan-out. They need the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_throttle.observe.status_text import waiting_text
from celery_throttle.operations.author import Author
from celery_throttle.web.actions.action import PAUSE_SECONDS, Action, Consequence, Values
from celery_throttle.web.site import Site


def _find(site: Site, name: str) -> Any:
    return site.task_methods.fan_out_named(name)


def _preview(text: str) -> Callable[[Site, str, Values], Consequence]:
    def preview(site: Site, name: str, _: Values) -> Consequence:
        return Consequence(f"{waiting_text(_find(site, name).progress().waiting)}. {text}")

    return preview


def _pause(site: Site, name: str, values: Values, author: Author) -> None:
    _find(site, name).pause(values["for"], reason=author.reason, by=author.by)


def _resume(site: Site, name: str, _: Values, author: Author) -> None:
    _find(site, name).resume(reason=author.reason, by=author.by)


def _cancel(site: Site, name: str, _: Values, author: Author) -> None:
    _find(site, name).cancel(reason=author.reason, by=author.by)


#: Pause, resume and cancel.
FAN_OUT_ACTIONS = (
    Action(
        "pause",
        _preview("None of them starts during the pause. A pause in force is never shortened."),
        _pause,
        (PAUSE_SECONDS,),
        needs_app=True,
    ),
    Action(
        "resume", _preview("They can start again, as their limits allow."), _resume, needs_app=True
    ),
    Action(
        "cancel",
        _preview("They are discarded for good: the state of each becomes REVOKED."),
        _cancel,
        needs_app=True,
        is_dangerous=True,
    ),
)
