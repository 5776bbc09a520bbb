"""Signatures as entries of lines: their ids, requirements and messages."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from celery import Task
from celery.canvas import Signature, maybe_signature
from kombu.serialization import dumps

from celery_throttle.bulk.capturing_producer import CapturedMessage, CapturingProducer
from celery_throttle.bulk.destination import DestinationReader
from celery_throttle.bulk.fan_out.enlist import Destination, LineEntry
from celery_throttle.bulk.fan_out.templates import (
    ARGS,
    ID,
    KWARGS,
    Template,
    allows_template,
    has_user_code,
)
from celery_throttle.bulk.fan_out.tracers import (
    SentryOptOut,
    TraceHeaders,
    are_tracers_loaded,
    has_trace_headers,
    suppress_tracers,
)
from celery_throttle.errors import FanOutError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import fan_out_ref
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.task_limits import FAN_OUT_HEADER, TaskLimits

#: Tasks that consist of other tasks, which have to be sent one by one.
_CANVAS = ("celery.chain", "celery.group", "celery.chord")

#: The signature of a kind from which on a template is tried.
_TEMPLATE_USES = 2

_CACHED_LINES = 2048


@dataclass(eq=False, slots=True)
class SignatureKind:
    """All signatures of one task with the same options, apart from their ids."""

    task: Task
    name: bytes
    options: Mapping[str, Any]
    headers: Mapping[str, Any]  #: those that the task is sent with, apart from Celery's
    limits: TaskLimits
    serializer: str
    uses: int = 0  #: the number of signatures so far
    first: tuple[Any, Any] = ((), None)  #: the arguments of the first signature
    trace: TraceHeaders | None = None  #: goes into each message; None if tracers see each message
    template: Template | None = None  #: makes their messages; None if Celery has to make each
    destination: tuple[str, int] = ("", 0)  #: queue and rank, if there is a template


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
        self._trace: TraceHeaders | None = None
        self._line_of = lru_cache(_CACHED_LINES)(self._find_line)

    def build(self, position: int, given: Signature) -> LineEntry:
        """Return the entry of the signature at a position among all of the fan-out.

        Raises:
            FanOutError: it cannot be part of a fan-out.
            ThrottleError: its arguments make no valid key or cost.
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
        requirement = kind.limits.fixed or kind.limits.requirement(args, kwargs)
        if kind.template is not None:
            (queue, rank), expires = kind.destination, 0
            packed = kind.template.pack(task_id, args, kwargs, content)
        else:
            if kind.uses == 0:
                kind.trace = self._trace_of(kind, args, kwargs, task_id)
            message = self._capture(kind, args, kwargs, task_id=task_id)
            queue, rank = self._destinations.queue_of(message), self._destinations.rank_of(message)
            expires, packed = self._destinations.expires_us(message), packing.pack(message)
            kind.uses += 1
            if kind.uses == 1:
                kind.first = args, kwargs
            elif kind.uses == _TEMPLATE_USES and isinstance(content, str):
                kind.template = self._template(kind, args, kwargs, (task_id, content, packed))
                kind.destination = queue, rank
        line = self._line_of(queue, requirement.refs)
        return LineEntry(line, task_id, rank, expires, packed, requirement.costs)

    def _find_line(self, queue: str, refs: tuple[LimitRef, ...]) -> Destination:
        """Return the line of the fan-out's tasks in a queue that need some limits and keys."""
        return Destination(queue, refs, self._throttle.keys.line(queue, (*refs, self._pause)))

    @staticmethod
    def _arguments(kind: SignatureKind, signature: Signature) -> tuple[Any, Any]:
        """Return the arguments in the message: Celery 5.7 and later dump models of Pydantic."""
        args, kwargs = signature["args"], signature["kwargs"]
        dump = getattr(kind.task, "_dump_pydantic_arguments", None)
        return (args, kwargs) if dump is None or kind.serializer == "pickle" else dump(args, kwargs)

    def _read(self, given: Any) -> Signature:
        """Return the signature of a dict, as it comes from JSON."""
        if isinstance(given, dict) and isinstance(given.get("task"), str):
            defaults: dict[str, Any] = {"args": (), "kwargs": {}, "options": {}}
            signature: Any = maybe_signature({**defaults, **given}, self._app)
            return signature  # type: ignore[no-any-return]  # of a dict it is never None
        raise FanOutError(f"{shown(given)} is no signature; allowed: such as charge.s(42)")

    def _kind_of(self, signature: Signature) -> SignatureKind:
        name, options = signature["task"], signature["options"]
        if "task_id" in options:
            options = {key: value for key, value in options.items() if key != "task_id"}
        kind = self._kinds.get(name)
        if kind is None or kind.options != options:
            # A deep copy: a caller may reuse and change one dict of headers.
            kind = self._kinds[name] = self._new_kind(name, deepcopy(options))
        return kind

    def _new_kind(self, name: str, options: Mapping[str, Any]) -> SignatureKind:
        where = f"task {name!r}"
        if name in _CANVAS:
            raise FanOutError(
                f"a {name.removeprefix('celery.')} cannot be part of a fan-out; allowed: single "
                "tasks, each with the tasks that follow it as its link"
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
                    f"its limits allow it: remove {option}"
                )
        serializer = options.get("serializer") or task.serializer
        headers = {
            **(options.get("headers") or {}),
            FAN_OUT_HEADER: self._name,
            "ignore_result": options.get("ignore_result", task.ignore_result),
        }
        return SignatureKind(task, name.encode(), options, headers, limits, serializer)

    def _id_of(self, position: int, kind: SignatureKind, content: str | bytes) -> str:
        """Return the same id if the same tasks are given in the same order again.

        Otherwise it differs: then a task may be sent twice, but none is omitted.
        """
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        text = b"%d %b %b" % (position, kind.name, data)
        digest = blake2b(text, digest_size=16, key=self._seed).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"

    def _trace_of(
        self, kind: SignatureKind, args: Any, kwargs: Any, task_id: str
    ) -> TraceHeaders | None:
        """Return the trace of the fan-out; None if tracers have to see each message of a kind."""
        if (
            not are_tracers_loaded()
            or has_user_code(kind.task)
            or has_trace_headers(kind.options.get("headers") or {})
        ):
            return None
        if self._trace is None:
            # Two messages of one call differ in nothing else but times.
            options = {"task_id": task_id, "expires": None}
            untraced = self._capture_untraced(kind, args, kwargs, options)
            traced = self._make(kind, args, kwargs, {**options, "headers": {**kind.headers}})
            self._trace = TraceHeaders.between(untraced, traced, kind.headers)
        return self._trace

    def _capture(self, kind: SignatureKind, args: Any, kwargs: Any, **more: Any) -> CapturedMessage:
        """Return the message that Celery would send."""
        if kind.trace is None:
            return self._make(kind, args, kwargs, {**more, "headers": {**kind.headers}})
        message = self._capture_untraced(kind, args, kwargs, more)
        kind.trace.add_to(message, kind.headers)
        return message

    def _capture_untraced(
        self, kind: SignatureKind, args: Any, kwargs: Any, more: Mapping[str, Any]
    ) -> CapturedMessage:
        with suppress_tracers():
            return self._make(kind, args, kwargs, {**more, "headers": SentryOptOut(kind.headers)})

    def _make(
        self, kind: SignatureKind, args: Any, kwargs: Any, more: Mapping[str, Any]
    ) -> CapturedMessage:
        """Let Celery make a message; ``more`` options than those of its kind."""
        # With ignore_result the backend does not subscribe to each result; the header is the truth.
        options = {**kind.options, "add_to_parent": False, "ignore_result": True, **more}
        captured: list[CapturedMessage] = []
        with self._app.producer_or_acquire() as producer:
            capturing = CapturingProducer(producer, lambda message, _: captured.append(message))
            kind.task.apply_async(args, kwargs, **options, producer=capturing)  # type: ignore[arg-type]  # it acts as one
        if len(captured) != 1:
            raise FanOutError(
                f"task {kind.task.name!r}: its apply_async() sent {len(captured)} messages with "
                "the producer that it was given; allowed: one"
            )
        return captured.pop()

    def _template(
        self, kind: SignatureKind, args: Any, kwargs: Any, expected: tuple[str, str, bytes]
    ) -> Template | None:
        """Return a template for the messages that follow, if it makes the same as Celery did.

        ``expected``: id, serialized arguments and packed message of a call that Celery made.
        """
        task_id, content, packed = expected
        if not allows_template(kind.task, kind.options):
            return None
        # From the arguments of another call, so that any other dependence on them shows.
        marks = {"task_id": ID, "argsrepr": ARGS, "kwargsrepr": KWARGS}
        template = Template.of(kind.task, self._capture(kind, *kind.first, **marks))
        return template if template.pack(task_id, args, kwargs, content) == packed else None
