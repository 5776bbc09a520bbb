"""Messages of signatures that are alike, made of one message of Celery's, as it would make them.

Celery takes about 90 us to make a message. Of signatures with the same task and options, all it
makes is the same but for what comes from the id and the arguments, unless code of the user's has a
part in it. So a template is a message with marks where these go; and it is used only after it gave
the same bytes as Celery did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as encode
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.utils.saferepr import saferepr
from kombu.utils import json

from celery_throttle.messages import packing
from celery_throttle.tasks.send_check import CheckedSend
from celery_throttle.tasks.task import ThrottledTask

if TYPE_CHECKING:
    from celery_throttle.fanout.capturing_producer import Sent

#: What stands for the id and for the texts of the arguments; nothing else in a message is like it.
ID, ARGS, KWARGS = ("\x01id\x01", "\x01args\x01", "\x01kwargs\x01")

#: Options that make a message depend on when it is made, or say what the template fills in.
_OWN = frozenset({"eta", "countdown", "expires", "argsrepr", "kwargsrepr"})

#: What makes messages.
_OVERRIDES = frozenset({"apply_async", "shadow_name", "send_task", "as_task_v2"})


def are_alike(task: Task, options: Mapping[str, Any]) -> bool:
    """Whether messages of a task with these options differ in ids and arguments only.

    Nobody's own code may have a part in them.
    """
    app: Any = task.app
    hooks: list[Any] = [
        signals.before_task_publish.receivers,
        signals.after_task_publish.receivers,
        signals.task_sent.receivers,
        app.conf.task_send_sent_event,
        getattr(task, "_dump_pydantic_arguments", None),
        getattr(task, "expires", None),
        _OWN & set(options),
        _OVERRIDES & _defined(task, Task, ThrottledTask),
        _OVERRIDES & _defined(app, Celery),
        _OVERRIDES & _defined(app.amqp, AMQP),
    ]
    own_routes = (route for route in app.amqp.router.routes if not isinstance(route, MapRoute))
    return not any(hooks) and not any(True for _ in own_routes)


def _defined(one: Any, *but: type) -> set[str]:
    """The names that an object and its classes define, other than some classes and this package."""
    own = (vars(cls) for cls in type(one).__mro__ if cls not in but)
    its = (name for name, value in vars(one).items() if not isinstance(value, CheckedSend))
    return {*its, *(name for names in own for name in names)}


@dataclass(frozen=True, slots=True)
class Template:
    """Messages of one task, made by :meth:`of`."""

    _about: str
    _tail: str
    _check: Callable[..., Any] | None
    _repr: Callable[[Any, int], str]
    _sizes: tuple[int, int]

    @classmethod
    def of(cls, task: Task, marked: Sent) -> Template:
        """A template of a message whose id and texts of arguments are marks."""
        for text in ("argsrepr", "kwargsrepr"):  # Celery sends the marks as properties, too
            marked.properties.pop(text, None)
        about = packing.about(marked).replace("%", "%%")
        for name, mark in (("id", ID), ("args", ARGS), ("kwargs", KWARGS)):
            about = about.replace(json.dumps(mark), f"%({name})s")
        app: Any = task.app
        amqp = app.amqp
        levels = app.conf.get("task_repr_maxlevels", 3)  # a setting since Celery 5.6
        return cls(
            _about=about,
            # The body is a list of the arguments, both kinds, and of what is to be done after.
            _tail=f", {json.dumps(marked.payload[2])}]",
            _check=getattr(task, "__header__", None) if task.typing else None,
            _repr=lambda value, size: saferepr(value, size, maxlevels=levels),
            _sizes=(amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize),
        )

    def packed(
        self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any], content: str
    ) -> bytes:
        """The message of one call of the task; ``content``: its arguments as JSON.

        Raises:
            TypeError: the task does not take these arguments.
        """
        if self._check is not None:
            self._check(*args, **kwargs)
        for_args, for_kwargs = self._sizes
        about = self._about % {
            "id": encode(task_id),
            "args": encode(self._repr(args, for_args)),
            "kwargs": encode(self._repr(kwargs, for_kwargs)) if kwargs else '"{}"',
        }
        return packing.join(about, content[:-1] + self._tail)
