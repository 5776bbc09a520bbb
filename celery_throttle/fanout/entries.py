"""Signatures as entries of lines: their ids, what they need, their messages."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.canvas import Signature, maybe_signature
from kombu.serialization import dumps

from celery_throttle.errors import FanOutError, shown
from celery_throttle.fanout.capturing_producer import Keeping, Sent
from celery_throttle.fanout.destination import Places
from celery_throttle.fanout.enlist import Entry
from celery_throttle.fanout.templates import ARGS, ID, KWARGS, Template, are_alike
from celery_throttle.limits.cost import MILLION
from celery_throttle.messages import packing
from celery_throttle.store.keys import fan_out_ref
from celery_throttle.tasks.task import FAN_OUT_HEADER, TaskLimits

if TYPE_CHECKING:
    from celery_throttle.app import Throttle

#: Tasks that are made of others, which have to be sent by themselves.
_CANVAS = ("celery.chain", "celery.group", "celery.chord")

_SECOND = 2


class Kind:
    """Signatures of one task with the same options, but for their ids.

    Args:
        task, options: theirs.
        limits: of the task.

    Attributes:
        uses: how many there have been.
        first: the arguments of the first.
        template: of their messages; None if Celery has to make each.
        place: a queue and a rank, if there is a template.
    """

    def __init__(self, task: Task, options: Mapping[str, Any], limits: TaskLimits) -> None:
        self.task = task
        self.name = str(task.name).encode()
        self.options = options
        self.limits = limits
        self.uses = 0
        self.first: tuple[Any, Any] = (), {}
        self.serializer = options.get("serializer") or task.serializer
        self.template: Template | None = None
        self.place = "", 0


class Entries:
    """Of one fan-out.

    Args:
        throttle: the app's limits.
        name: of the fan-out.
    """

    def __init__(self, throttle: Throttle, name: str) -> None:
        self._throttle = throttle
        self._app = throttle.app
        self._name = name
        self._ref = fan_out_ref(name)
        self._seed = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._places = Places(throttle)
        self._kinds: dict[str, Kind] = {}

    def entry(self, position: int, given: Signature) -> Entry:
        """A signature, in its place among all that are given.

        Raises:
            FanOutError: it cannot be part of a fan-out.
            ThrottleError: its arguments tell no key or cost.
            TypeError: the task does not take its arguments.
        """
        signature = given if isinstance(given, Signature) else self._read(given)
        kind = self._kind_of(signature)
        args, kwargs = self._arguments(kind, signature)
        _, _, content = dumps((args, kwargs), serializer=kind.serializer)
        task_id = signature["options"].get("task_id") or self._id_of(position, kind, content)
        if not isinstance(task_id, str):
            raise FanOutError(
                f"task {kind.task.name!r} has task_id {shown(task_id)}; allowed: text"
            )
        need = kind.limits.fixed or kind.limits.need(args, kwargs)
        if kind.template is not None:
            (queue, rank), expires = kind.place, 0
            packed = kind.template.packed(task_id, args, kwargs, content)
        else:
            sent = self._sent(kind, args, kwargs, task_id=task_id)
            queue, rank = self._places.queue_of(sent), self._places.rank_of(sent)
            expires, packed = self._places.expires_us(sent), packing.pack(sent)
            kind.uses += 1
            if kind.uses == 1:
                kind.first = args, kwargs
            elif kind.uses == _SECOND and isinstance(content, str):
                self._try_template(kind, args, kwargs, (task_id, content, packed), (queue, rank))
        place = self._places.line(queue, (*need.refs, self._ref))
        return Entry(place, task_id, rank, expires, packed, (*need.costs, MILLION))

    @staticmethod
    def _arguments(kind: Kind, signature: Signature) -> tuple[Any, Any]:
        """As they are in the message: Celery dumps models of Pydantic, from 5.7 on."""
        args, kwargs = signature["args"], signature["kwargs"]
        dump = getattr(kind.task, "_dump_pydantic_arguments", None)
        return (args, kwargs) if dump is None or kind.serializer == "pickle" else dump(args, kwargs)

    def _read(self, given: Any) -> Signature:
        """A signature that came as a dict, as JSON has it."""
        if isinstance(given, dict) and isinstance(given.get("task"), str):
            whole = {"args": (), "kwargs": {}, "options": {}, **given}
            signature: Any = maybe_signature(whole, self._app)
            return signature  # type: ignore[no-any-return]  # given one, it gives one
        raise FanOutError(f"{shown(given)} is no signature; allowed: such as charge.s(42)")

    def _kind_of(self, signature: Signature) -> Kind:
        name, options = signature["task"], signature["options"]
        if "task_id" in options:
            options = {key: value for key, value in options.items() if key != "task_id"}
        kind = self._kinds.get(name)
        if kind is None or kind.options != options:
            # All of it is copied: who makes signatures may go on with the same dict of headers.
            kind = self._kinds[name] = self._new_kind(name, deepcopy(options))
        return kind

    def _new_kind(self, name: str, options: Mapping[str, Any]) -> Kind:
        where = f"task {name!r}"
        if name in _CANVAS:
            raise FanOutError(
                f"a {name.removeprefix('celery.')} cannot be part of a fan-out; allowed: single "
                "tasks, each with what is to follow it as its link"
            )
        if name not in self._app.tasks:
            raise FanOutError(f"{where} is not known to app {self._app.main!r}, nor its limits")
        task = self._app.tasks[name]
        limits = self._throttle.task_limits(task)
        if limits is None:
            raise FanOutError(
                f"{where} has no limit, so there is no line for it: send it by delay()"
            )
        for option in ("eta", "countdown"):
            if options.get(option):
                raise FanOutError(
                    f"{where} has {option} {shown(options[option])}; a task in a line starts when "
                    "its limits allow it: leave it out"
                )
        return Kind(task, options, limits)

    def _id_of(self, position: int, kind: Kind, content: str | bytes) -> str:
        """The same when the same tasks are given in the same order again.

        If they are not, another: then a task may be sent twice, but none is left out.
        """
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        what = b"%d %b %b" % (position, kind.name, data)
        digest = blake2b(what, digest_size=16, key=self._seed).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"

    def _sent(self, kind: Kind, args: Any, kwargs: Any, **own: Any) -> Sent:
        """What Celery would send."""
        options = kind.options
        ignored = options.get("ignore_result", kind.task.ignore_result)
        about = {
            **options,
            **own,
            "add_to_parent": False,
            # Or the backend would subscribe to each result. The header says what is true.
            "ignore_result": True,
            "headers": {
                **(options.get("headers") or {}),
                FAN_OUT_HEADER: self._name,
                "ignore_result": ignored,
            },
        }
        kept: list[Sent] = []
        with self._app.producer_or_acquire() as producer:
            keeping = Keeping(producer, lambda sent, _: kept.append(sent))
            kind.task.apply_async(args, kwargs, **about, producer=keeping)  # type: ignore[arg-type]  # as good as one
        if len(kept) != 1:
            raise FanOutError(
                f"task {kind.task.name!r}: its apply_async() sent {len(kept)} messages with the "
                "producer that it was given; allowed: one"
            )
        return kept.pop()

    def _try_template(
        self,
        kind: Kind,
        args: Any,
        kwargs: Any,
        made: tuple[str, str, bytes],
        place: tuple[str, int],
    ) -> None:
        """Let those that follow come from a template, if that gives the same as Celery made."""
        task_id, content, packed = made
        if are_alike(kind.task, kind.options):
            # Made of other arguments: what depends on these in any other way is not the same, then.
            marks = {"task_id": ID, "argsrepr": ARGS, "kwargsrepr": KWARGS}
            marked = self._sent(kind, *kind.first, **marks)
            template = Template.of(kind.task, marked)
            if template.packed(task_id, args, kwargs, content) == packed:
                kind.template, kind.place = template, place
