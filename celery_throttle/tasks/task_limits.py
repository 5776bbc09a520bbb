"""The limits of a task, read from its attributes or its route, and checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any

from celery import Task

from celery_throttle.errors import (
    ConfigurationError,
    KeyTemplateError,
    LimitError,
    UnknownLimitError,
    shown,
)
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.key_template import ArgumentReader, KeyTemplate, parse_templates
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.operations.replies import unknown_limit_error
from celery_throttle.operations.waiting import Kept
from celery_throttle.tasks.settings import Spec

#: A cost, or the argument that has it (``"{tokens}"``); for all limits, or by limit name.
CostSpec = Cost | str | Mapping[str, Cost | str]

#: Header with the name of the fan-out that a task, or its retry, is part of.
FAN_OUT_HEADER = "throttle_fan_out"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The limits that a task declares, read and checked."""

    templates: tuple[KeyTemplate, ...]
    costs: tuple[int | None, ...]  #: of each template, in millionths of a unit; None: an argument's
    reader: ArgumentReader  #: reads the arguments that make keys, then those that make costs
    fixed: Requirement | None  #: of every call, if it does not depend on arguments
    slots: tuple[int, ...]  #: indexes of limits with slots, released at the end of the task
    max_wait: float | None  #: seconds; see :class:`ThrottledTask`, also for `drop` and `track`
    drop: bool
    track: bool
    settles: bool = False  #: whether runs settle what is taken for them
    kept: Kept = Kept.ALL  #: which tasks of a line may wait

    @classmethod
    def none(cls) -> TaskLimits:
        """Return the limits of a task that declares none."""
        return cls((), (), ArgumentReader("", ()), None, (), None, drop=False, track=False)

    @property
    def names(self) -> set[str]:
        """The names of the limits."""
        named = self.templates if self.fixed is None else self.fixed.refs
        return {each.name for each in named}

    def requirement(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Requirement:
        """Return what one call of the task requires.

        Raises:
            KeyValueError: an argument's value cannot be a key.
            CostError: an argument's value cannot be a cost.
        """
        values = self.reader.read(args, kwargs)
        refs, used = [], 0
        for template in self.templates:
            count = len(template.arguments)
            refs.append(template.ref(values[used : used + count]))
            used += count
        given = iter(values[used:])
        costs = [to_millionths(next(given)) if cost is None else cost for cost in self.costs]
        if len(refs) > 1:  # two templates may give the same key, which is charged once
            each = dict(zip(refs, costs, strict=True))
            refs, costs = list(each), list(each.values())
        return Requirement(tuple(refs), tuple(costs))

    @classmethod
    def read(cls, task: type[Task] | Task, spec: Spec, known: Mapping[str, Limits]) -> TaskLimits:
        """Read the attributes of a task.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: they name the task and the text.
        """
        where = f"task {task.name!r}"
        templates = read_templates(spec, known, where)
        max_wait = getattr(task, "throttle_max_wait", None)
        with _named(where):
            costs = _read_costs(getattr(task, "throttle_cost", 1), templates, known)
            if max_wait is not None:
                max_wait = check_duration(max_wait, "throttle_max_wait")
        signature = _signature(task)
        _refuse_names_as_text(templates, signature, where)
        arguments = [name for template in templates for name in template.arguments]
        arguments += [cost for cost in costs if isinstance(cost, str)]
        limits = cls(
            templates=templates,
            costs=tuple(None if isinstance(cost, str) else cost for cost in costs),
            reader=ArgumentReader.for_signature(signature, arguments, where),
            fixed=None,
            slots=find_slot_indexes((template.name for template in templates), known),
            max_wait=max_wait,
            drop=_read_drop(task, where),
            track=bool(getattr(task, "throttle_track", False)),
            settles=bool(getattr(task, "throttle_settles", False)),
            kept=_read_kept(task, where),
        )
        return limits if arguments else replace(limits, fixed=limits.requirement((), {}))


def _refuse_names_as_text(
    templates: Sequence[KeyTemplate], signature: inspect.Signature, where: str
) -> None:
    """Refuse a key that is the name of an argument: without braces, all calls have this one key."""
    for template in templates:
        for part in template.text.split(":")[1:]:
            if part in signature.parameters:
                right = template.text.replace(f":{part}", f":{{{part}}}")
                raise KeyTemplateError(
                    f"{where}: {shown(template.text)} gives all calls the key {part!r}, which is "
                    f"also the name of an argument; write {right!r} for its value, or another text"
                )


def _read_costs(
    spec: CostSpec, templates: Sequence[KeyTemplate], known: Mapping[str, Limits]
) -> list[int | str]:
    """Return the cost for each limit in millionths, or the name of the argument that has it."""
    given = spec if isinstance(spec, Mapping) else {one.name: spec for one in templates}
    unknown = sorted(set(given) - {template.name for template in templates}, key=str)
    if unknown:
        raise LimitError(f"throttle_cost names {shown(unknown[0])}, which is no limit of the task")
    costs: list[int | str] = []
    for template in templates:
        cost = given.get(template.name, 1)
        if isinstance(cost, str) and cost[:1] + cost[-1:] == "{}" and cost[1:-1].isidentifier():
            costs.append(cost[1:-1])
        else:
            for limit in known[template.name]:
                amount = limit.check_cost(cost, template.name)  # type: ignore[arg-type]  # it checks the type, too
            costs.append(amount)
    return costs


def _read_drop(task: type[Task] | Task, where: str) -> bool:
    after = getattr(task, "throttle_on_max_wait", "fail")
    if after not in ("fail", "drop"):
        raise ConfigurationError(
            f"{where}: throttle_on_max_wait is {shown(after)}: it must be 'fail' or 'drop'"
        )
    return bool(after == "drop")


def _read_kept(task: type[Task] | Task, where: str) -> Kept:
    kept = getattr(task, "throttle_keep_waiting", "all")
    names = {one.name.lower(): one for one in Kept}
    if not isinstance(kept, str) or kept not in names:
        raise ConfigurationError(
            f"{where}: throttle_keep_waiting is {shown(kept)}: it must be 'all', 'newest' or "
            "'first'"
        )
    return names[kept]


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Put the place of a mistake in front of the error."""
    try:
        yield
    except (ConfigurationError, LimitError, UnknownLimitError) as error:
        raise type(error)(f"{where}: {error}") from error


def read_templates(spec: Spec, known: Mapping[str, Limits], where: str) -> tuple[KeyTemplate, ...]:
    """Read the limits that a task or a route names.

    Raises:
        UnknownLimitError, LimitError, ConfigurationError: the text is wrong; the message names it,
            and ``where`` it is.
    """
    with _named(where):
        templates = parse_templates(spec)
        for template in templates:
            if template.name not in known:
                raise unknown_limit_error(template.name, known)
    return templates


def _signature(task: type[Task] | Task) -> inspect.Signature:
    cls = task if isinstance(task, type) else type(task)
    run = inspect.getattr_static(cls, "run")
    signature = inspect.signature(cls.run)
    parameters = list(signature.parameters.values())
    if not isinstance(run, staticmethod):
        parameters = parameters[1:]  # without self
    if task.typing is False and all(one.kind is not Parameter.VAR_KEYWORD for one in parameters):
        # The calls have other arguments than `run`, as in celery-batches.
        parameters.append(Parameter("any", Parameter.VAR_KEYWORD))
    return signature.replace(parameters=parameters)
