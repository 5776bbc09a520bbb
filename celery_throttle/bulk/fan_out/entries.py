"""Signatures as entries of lines: their ids, requirements and messages."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from celery import Celery, Task
from celery.canvas import Signature, maybe_signature
from kombu.serialization import dumps

from celery_throttle.bulk.capture import (
    CapturedMessage,
    CapturingProducer,
    DestinationReader,
    as_delivered,
    requirement_of,
)
from celery_throttle.bulk.fan_out.enlist import Destination, LineEntry
from celery_throttle.bulk.fan_out.parts import shard_of_limits
from celery_throttle.bulk.fan_out.templates import (
    ARGS,
    ID,
    KWARGS,
    SHARD,
    Template,
    allows_template,
    has_user_code,
)
from celery_throttle.bulk.fan_out.tracers import (
    SentryOptOut,
    copy_trace,
    suppress_tracers,
    trace_of,
)
from celery_throttle.errors import FanOutError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import fan_out_ref
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import computed_headers
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER, FAN_OUT_SHARD_HEADER, TaskLimits

#: Tasks that consist of other tasks, which have to be sent one by one.
_CANVAS = ("celery.chain", "celery.group", "celery.chord")

_CACHED_LINES = 2048


@dataclass(eq=False, slots=True)
class SignatureKind:
    """All signatures of one task with the same options, apart from their ids."""

    task: Task
    options: Mapping[str, Any]
    headers: Mapping[str, Any]  #: those that the task is sent with, apart from Celery's
    limits: TaskLimits
    serializer: str
    ignores_result: bool  #: whether the result backend gets no error of them
    shares_trace: bool  #: whether its messages have the trace of the first one of the fan-out
    first: tuple[Any, Any] | None = None  #: arguments of the first signature
    may_have_template: bool = True  #: whether the second signature is still to come
    template: Template | None = None  #: makes their messages; None if Celery has to make each


class EntryBuilder:
    """Builds the entries of one fan-out."""

    def __init__(self, throttle: AppLimits, name: str) -> None:
        self._throttle = throttle
        self._app = throttle.app
        self._name = name
        self._pause = fan_out_ref(name)
        self._seed = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._destinations = DestinationReader(throttle)
        self._kinds: dict[str, SignatureKind] = {}
        self._traced: CapturedMessage | None = None  # the one message that tracers have seen
        self._parts = throttle.parts_by_name
        self._line_of = lru_cache(_CACHED_LINES)(self._find_line)

    def build(self, position: int, given: Signature) -> LineEntry:
        """Return the entry of the signature at a position among all of the fan-out.

        Raises:
            FanOutError: it cannot be part of a fan-out.
            ThrottleError: its arguments make no valid key or cost.
            TypeError: the task does not take its arguments.
        """
        signature = read_signature(self._app, given)
        kind = self._kind_of(signature)
        args, kwargs = signature["args"], signature["kwargs"]
        dump = getattr(kind.task, "_dump_pydantic_arguments", None)  # Celery 5.7 and later
        if dump is not None and kind.serializer != "pickle":
            args, kwargs = dump(args, kwargs)
        content_type, encoding, content = dumps((args, kwargs), serializer=kind.serializer)
        task_id = signature["options"].get("task_id") or self._id_of(position, kind, content)
        if not isinstance(task_id, str) or not task_id.isprintable():
            raise FanOutError(
                f"task {kind.task.name!r} has task_id {shown(task_id)}; allowed: printable text"
            )
        template = kind.template
        if template is not None:
            queue, rank, expires = template.destination
            data = as_delivered(content, self._destinations.driver_type)
            serialized = content_type, encoding, data
            requirement = requirement_of(kind.limits, args, kwargs, serialized)
        else:  # code of the user may change the arguments
            message = self._capture(kind, args, kwargs, task_id=task_id)
            queue, rank, expires = self._destinations.read(message)
            requirement = message.requirement(kind.limits)
        if requirement is None:
            raise FanOutError(
                f"no limit of task {kind.task.name!r} applies to arguments {shown(args)} and "
                f"{shown(kwargs)}, so there is no line for it: send it by delay()"
            )
        line = self._line_of(queue, requirement.refs)
        self._throttle.look_up_keys(requirement.refs)
        if template is not None:
            packed = template.pack(task_id, args, kwargs, content, line.shard)
        else:
            _add_shard(message, line.shard)
            packed = packing.pack(message, computed_headers(kind.limits, requirement))
            if kind.may_have_template and kind.limits.computed is None:
                self._find_template(kind, message, content, line.shard)
        costs, settles = requirement.costs, kind.limits.settles
        parts = line, task_id, rank, expires, packed, costs, settles, kind.ignores_result, position
        return LineEntry(*parts)

    def _find_line(self, queue: str, refs: tuple[LimitRef, ...]) -> Destination:
        """Return the line of the fan-out's tasks in a queue that need some limits and keys."""
        shard = shard_of_limits(self._throttle, refs)
        line = self._parts[shard].keys.line(queue, (*refs, self._pause))
        return Destination(queue, refs, line, shard)

    def _kind_of(self, signature: Signature) -> SignatureKind:
        name, options = signature["task"], signature["options"]
        if "task_id" in options:
            options = {key: value for key, value in options.items() if key != "task_id"}
        kind = self._kinds.get(name)
        # The limits may have changed with the rules file.
        if (
            kind is None
            or kind.options != options
            or kind.limits is not self._throttle.task_limits(kind.task)
        ):
            # A copy: a caller may reuse and change one dict of headers, or one link.
            kind = self._kinds[name] = self._new_kind(name, _copy(options))
        return kind

    def _new_kind(self, name: str, options: Mapping[str, Any]) -> SignatureKind:
        where = f"task {name!r}"
        if name not in self._app.tasks:
            raise FanOutError(f"{where} is not known to app {self._app.main!r}, nor its limits")
        task = self._app.tasks[name]
        limits = self._throttle.task_limits(task)
        if limits is None:
            raise FanOutError(
                f"{where} has no limit, so there is no line for it: send it by delay()"
            )
        if limits.kept:
            raise FanOutError(
                f"{where} has throttle_keep_waiting={limits.kept.name.lower()!r}, but all tasks of "
                "a fan-out run; allowed: 'all'"
            )
        for option in ("eta", "countdown"):
            if options.get(option):
                raise FanOutError(
                    f"{where} has {option} {shown(options[option])}; a task in a line starts when "
                    f"its limits allow it: remove {option}"
                )
        serializer = options.get("serializer") or task.serializer
        ignores_result = options.get("ignore_result", task.ignore_result)
        headers = {
            **(options.get("headers") or {}),
            FAN_OUT_HEADER: self._name,
            "ignore_result": ignores_result,
        }
        # As Celery's request decides about errors.
        ignores_result = ignores_result and not task.store_errors_even_if_ignored
        shares_trace = not has_user_code(task) and not trace_of(options.get("headers") or {})
        parts = task, options, headers, limits, serializer, bool(ignores_result), shares_trace
        return SignatureKind(*parts)

    def _id_of(self, position: int, kind: SignatureKind, content: str | bytes) -> str:
        """Return the same id if the same tasks are given in the same order again.

        Otherwise it differs: then a task may be sent twice, but none is omitted.
        """
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        text = f"{position} {kind.task.name} ".encode() + data
        digest = blake2b(text, digest_size=16, key=self._seed).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"

    def _capture(self, kind: SignatureKind, args: Any, kwargs: Any, **more: Any) -> CapturedMessage:
        """Return the message of a task; ``more`` options than those of its kind."""
        if not kind.shares_trace:
            return self._make(kind, args, kwargs, **more, headers=dict(kind.headers))
        if self._traced is None:
            self._traced = self._make(kind, args, kwargs, **more, headers=dict(kind.headers))
            return self._traced
        with suppress_tracers():
            message = self._make(kind, args, kwargs, **more, headers=SentryOptOut(kind.headers))
        copy_trace(self._traced.headers, message.headers, kind.headers)
        return message

    def _make(self, kind: SignatureKind, args: Any, kwargs: Any, **more: Any) -> CapturedMessage:
        """Let Celery make a message, and return it."""
        # With ignore_result the backend does not subscribe to each result; the header is the truth.
        options = {**kind.options, "add_to_parent": False, "ignore_result": True, **more}
        captured: list[CapturedMessage] = []
        with self._app.producer_or_acquire() as producer:
            driver_type = self._destinations.driver_type
            capturing: Any = CapturingProducer(
                producer, driver_type, lambda one, _: captured.append(one)
            )
            kind.task.apply_async(args, kwargs, **options, producer=capturing)
        if len(captured) != 1:
            raise FanOutError(
                f"task {kind.task.name!r}: its apply_async() sent {len(captured)} messages with "
                "the producer that it was given; allowed: one"
            )
        return captured.pop()

    def _find_template(
        self, kind: SignatureKind, message: CapturedMessage, content: str | bytes, shard: str
    ) -> None:
        """At a kind's second message made by Celery, find a template for those that follow.

        It must make the same message from the arguments of another call, so that any other
        dependence on them shows.
        """
        args, kwargs, _ = message.payload
        if kind.first is None:
            kind.first = args, kwargs
            return
        kind.may_have_template = False
        if isinstance(content, str) and allows_template(kind.task, kind.options):
            marks = {"task_id": ID, "argsrepr": ARGS, "kwargsrepr": KWARGS}
            marked = self._capture(kind, *kind.first, **marks)
            _add_shard(marked, shard and SHARD)
            template = Template.of(kind.task, marked, self._destinations.read(message))
            made = template.pack(message.headers["id"], args, kwargs, content, shard)
            if made == packing.pack(message):
                kind.template = template


def _add_shard(message: CapturedMessage, shard: str) -> None:
    """Add the header with the name of the shard, which messages have if there are several."""
    if shard:
        message.headers[FAN_OUT_SHARD_HEADER] = shard


def _copy(value: Any) -> Any:
    """Copy options at any depth; deepcopy() leaves out the arguments of signatures."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        copied = map(_copy, value)
        return [*copied] if isinstance(value, list) else tuple(copied)
    return deepcopy(value)


def read_signature(app: Celery, given: Any) -> Signature:
    """Return what is given, a signature, or a dict as one comes from JSON.

    Raises:
        FanOutError: it is neither, or consists of several tasks.
    """
    signature: Any = given
    if not isinstance(given, Signature):
        if not isinstance(given, dict) or not isinstance(given.get("task"), str):
            raise FanOutError(f"{shown(given)} is no signature; allowed: such as charge.s(42)")
        defaults: dict[str, Any] = {"args": (), "kwargs": {}, "options": {}}
        signature = maybe_signature({**defaults, **given}, app)
    name = signature["task"]
    if name in _CANVAS:
        raise FanOutError(
            f"a {name.removeprefix('celery.')} cannot be part of a fan-out; allowed: single "
            "tasks, each with the tasks that follow it as its link"
        )
    return signature  # type: ignore[no-any-return]  # of a dict it is never None
