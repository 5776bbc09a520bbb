"""Templates: messages of similar signatures, made from one message of Celery.

Celery takes about 90 us to make a message. Messages with the same task and options differ only in
id and arguments, unless code of the user contributes to them. So a template is a message with marks
in these places. It is used only after it made the same bytes as Celery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as encode
from typing import Any

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.utils.saferepr import saferepr
from kombu.utils import json

from celery_throttle.bulk.capture import CapturedMessage
from celery_throttle.bulk.fan_out.tracers import receivers_of_users
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.task import CheckedSend, ThrottledTask

#: Marks for the id and for the texts of the arguments. Nothing else in a message looks like them.
ID, ARGS, KWARGS = ("\x01id\x01", "\x01args\x01", "\x01kwargs\x01")

#: A mark for the name of the shard, which messages have if there are several.
SHARD = "\x01shard\x01"

#: Options that depend on the time, or that the template fills in.
_UNSUPPORTED_OPTIONS = frozenset({"eta", "countdown", "expires", "argsrepr", "kwargsrepr"})

#: Methods that make messages.
_MESSAGE_METHODS = frozenset({"apply_async", "shadow_name", "send_task", "as_task_v2"})


def allows_template(task: Task, options: Mapping[str, Any]) -> bool:
    """Whether messages of a task with these options differ only in ids and arguments."""
    variable: list[Any] = [
        has_user_code(task),
        getattr(task, "_dump_pydantic_arguments", None),
        getattr(task, "expires", None),
        _UNSUPPORTED_OPTIONS & set(options),
    ]
    return not any(variable)


def has_user_code(task: Task) -> bool:
    """Whether code of the user runs for each message of a task, and may contribute to it."""
    app: Any = task.app
    hooks: list[Any] = [
        receivers_of_users(signals.before_task_publish),
        receivers_of_users(signals.after_task_publish),
        signals.task_sent.receivers,
        app.conf.task_send_sent_event,
        _MESSAGE_METHODS & _defined(task, Task, ThrottledTask),
        _MESSAGE_METHODS & _defined(app, Celery),
        _MESSAGE_METHODS & _defined(app.amqp, AMQP),
    ]
    return any(hooks) or not all(isinstance(each, MapRoute) for each in app.amqp.router.routes)


def _defined(one: Any, *known: type) -> set[str]:
    """Return the names that an object and its classes define, except those of known classes."""
    of_classes = (vars(cls) for cls in type(one).__mro__ if cls not in known)
    of_object = (name for name, value in vars(one).items() if not isinstance(value, CheckedSend))
    return {*of_object, *(name for names in of_classes for name in names)}


@dataclass(frozen=True, slots=True)
class Template:
    """Makes the packed messages of one task. Made by :meth:`of`."""

    destination: tuple[str, int, int]  #: queue, rank, and 0, as the messages do not expire
    _head: str
    _tail: str
    _check: Callable[..., Any] | None
    _repr: Callable[[Any, int], str]
    _sizes: tuple[int, int]

    @classmethod
    def of(cls, task: Task, marked: CapturedMessage, destination: tuple[str, int, int]) -> Template:
        """Return the template of a message whose id and texts of arguments are marks."""
        for text in ("argsrepr", "kwargsrepr"):  # Celery also sends the marks as properties
            marked.properties.pop(text, None)
        head = packing.pack_head(marked).replace("%", "%%")
        for name, mark in (("id", ID), ("args", ARGS), ("kwargs", KWARGS), ("shard", SHARD)):
            head = head.replace(json.dumps(mark), f"%({name})s")
        app: Any = task.app
        levels = app.conf.get("task_repr_maxlevels", 3)  # a setting since Celery 5.6
        return cls(
            destination,
            _head=head,
            # The body is a list of args, kwargs, and the embedded options (links, chain, ...).
            _tail=f", {json.dumps(marked.payload[2])}]",
            _check=getattr(task, "__header__", None) if task.typing else None,
            _repr=lambda value, size: saferepr(value, size, maxlevels=levels),
            _sizes=(app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize),
        )

    def pack(
        self,
        task_id: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        content: str,
        shard: str = "",
    ) -> bytes:
        """Return the packed message of one call; ``content``: its arguments as JSON.

        Raises:
            TypeError: the task does not take these arguments.
        """
        if self._check is not None:
            self._check(*args, **kwargs)
        for_args, for_kwargs = self._sizes
        head = self._head % {
            "id": encode(task_id),
            "args": encode(self._repr(args, for_args)),
            "kwargs": encode(self._repr(kwargs, for_kwargs)) if kwargs else '"{}"',
            "shard": f'"{shard}"',
        }
        return packing.join(head, content[:-1] + self._tail)
