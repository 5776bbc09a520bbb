"""The actions that take waiting tasks out of their lines. They need the app."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.fleet import is_consumed
from celery_throttle.observe.status_text import unconsumed_text
from celery_throttle.operations.author import Author
from celery_throttle.web.actions.action import Action, Consequence, TimeIsUpError, Values
from celery_throttle.web.actions.forms import Field
from celery_throttle.web.site import Site

#: Seconds after which one request removes no further tasks, so that a browser gets its answer.
REMOVAL_SECONDS = 10.0


def _remove(remove: Callable[..., Any], *args: Any, author: Author) -> None:
    """Call ``drain``, ``move`` or ``drop`` of a limit of the app."""
    end = time.monotonic() + REMOVAL_SECONDS

    def stop_in_time(done: int, total: int) -> None:
        if done < total and time.monotonic() > end:
            raise TimeIsUpError

    about = {"by": author.by} | ({"reason": author.reason} if author.reason else {})
    remove(*args, **about, progress=stop_in_time)


def _preview(text: str) -> Callable[[Site, LimitRef, Values], Consequence]:
    def preview(site: Site, ref: LimitRef, _: Values) -> Consequence:
        return Consequence(text, found=site.task_methods[ref].count_waiting())

    return preview


def _preview_move(site: Site, ref: LimitRef, values: Values) -> Consequence:
    queue = values["queue"]
    text = f"They go to queue {queue}."
    if not site.run(is_consumed(site.observer, site.limiter.own_broker + queue)):
        text += f" {unconsumed_text(queue)}"
    return Consequence(text, found=site.task_methods[ref].count_waiting())


def _drain(site: Site, ref: LimitRef, _: Values, author: Author) -> None:
    _remove(site.task_methods[ref].drain, author=author)


def _move(site: Site, ref: LimitRef, values: Values, author: Author) -> None:
    _remove(site.task_methods[ref].move, values["queue"], author=author)


def _drop(site: Site, ref: LimitRef, _: Values, author: Author) -> None:
    _remove(site.task_methods[ref].drop, author=author)


_TASKS = "the waiting tasks of"
_QUEUE = Field("queue", "Queue", "the name of a queue of the app", str)

#: Drain, move and drop.
REMOVAL_ACTIONS = (
    Action("drain", _preview("They go back to their queues."), _drain, needs_app=True, part=_TASKS),
    Action("move", _preview_move, _move, (_QUEUE,), needs_app=True, part=_TASKS),
    Action(
        "drop",
        _preview("They are discarded for good: the state of each becomes REVOKED."),
        _drop,
        needs_app=True,
        is_dangerous=True,
        part=_TASKS,
    ),
)
