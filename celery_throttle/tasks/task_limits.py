"""The limits of a task, read from its attributes or its route, and checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from celery_throttle.limits.cost import ArgumentCost
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.key_template import (
    ArgumentReader,
    KeyTemplate,
    parse_templates,
    signature_of_calls,
)
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.requirement import Requirement, find_slot_indexes
from celery_throttle.operations.replies import unknown_limit_error
from celery_throttle.operations.waiting import Kept
from celery_throttle.tasks.computed import ComputedLimits, Entry
from celery_throttle.tasks.costs import CostSpec, TaskCosts
from celery_throttle.tasks.functions import (
    TaskFunction,
    is_function,
    items_of_spec,
)
from celery_throttle.tasks.settings import Spec

#: Header with the name of the fan-out that a task, or its retry, is part of.
FAN_OUT_HEADER = "throttle_fan_out"

#: Header with the name of the shard that has this fan-out, if the app has several shards.
FAN_OUT_SHARD_HEADER = "throttle_fan_out_shard"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The limits that a task declares, read and checked."""

    templates: tuple[KeyTemplate, ...]
    costs: tuple[int | ArgumentCost, ...]  #: of each template, in millionths of a unit
    reader: ArgumentReader  #: reads the arguments that make keys, then those that make costs
    fixed: Requirement | None  #: of every call, if it does not depend on arguments
    slots: tuple[int, ...]  #: indexes of limits with slots, released at the end of the task
    max_wait: float | None  #: seconds; see :class:`ThrottledTask`, also for `drop` and `track`
    drop: bool
    track: bool
    settles: bool = False  #: whether runs settle what is taken for them
    kept: Kept = Kept.ALL  #: which tasks of a line may wait
    #: Set if not all templates apply to every call, or functions return limits or costs. Then
    #: ``templates`` are those of the task itself, and only this can say what a call requires.
    computed: ComputedLimits | None = None

    @classmethod
    def none(cls) -> TaskLimits:
        """Return the limits of a task that declares none."""
        return cls((), (), ArgumentReader("", ()), None, (), None, drop=False, track=False)

    @property
    def names(self) -> set[str]:
        """The names of the limits."""
        named = self.templates if self.fixed is None else self.fixed.refs
        return {each.name for each in named}

    @property
    def functions(self) -> tuple[TaskFunction, ...]:
        """The functions that decide about limits or costs; none for most tasks."""
        return () if self.computed is None else self.computed.functions

    def of_call(
        self, requirement: Requirement, known: Mapping[str, Limits], *, settles: bool
    ) -> TaskLimits:
        """Return the limits of one call, of which it is known what it requires."""
        return TaskLimits(  # `replace` takes three times as long
            self.templates,
            self.costs,
            self.reader,
            requirement,
            find_slot_indexes([ref.name for ref in requirement.refs], known),
            self.max_wait,
            self.drop,
            self.track,
            settles,
            self.kept,
        )

    def requirement(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Requirement | None:
        """Return what one call of the task requires; None if none of its limits applies.

        Raises:
            KeyValueError: an argument's value cannot be a key.
            CostError: an argument's value cannot be a cost.
            LimitFunctionError: a function raised, or returned a wrong value.
        """
        if self.fixed is not None:
            return self.fixed
        if self.computed is not None:
            return self.computed.requirement(args, kwargs)
        values = self.reader.read(args, kwargs)
        refs: list[Any] = []
        used = 0
        for template in self.templates:
            count = len(template.arguments)
            refs.append(template.ref(values[used : used + count]))
            used += count
        given = iter(values[used:])
        costs = [cost if isinstance(cost, int) else cost.amount(next(given)) for cost in self.costs]
        if len(refs) > 1:  # two templates may give the same key, which is charged once
            each = dict(zip(refs, costs, strict=True))
            refs, costs = list(each), list(each.values())
        return Requirement(tuple(refs), tuple(costs))

    @classmethod
    def read(
        cls, task: type[Task] | Task, spec: Spec, cost: CostSpec, known: Mapping[str, Limits]
    ) -> TaskLimits:
        """Read limits and a cost, of the task or its route, and the other attributes of the task.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: they name the task and the text.
        """
        where, signature = f"task {task.name!r}", _signature(task)
        entries = read_entries(spec, known, where, signature)
        templates = tuple(entry for entry in entries if isinstance(entry, KeyTemplate))
        max_wait = getattr(task, "throttle_max_wait", None)
        names = [template.name for template in templates]
        with named(where):
            costs = TaskCosts.read(
                cost,
                names,
                known,
                partial(TaskFunction.of, signature=signature, where=where, option="throttle_cost"),
                or_others=len(templates) < len(entries),
            )
            if max_wait is not None:
                max_wait = check_duration(max_wait, "throttle_max_wait")
        _refuse_names_as_text(templates, signature, where)
        of_each = map(costs.__getitem__, names)
        plain = tuple(each for each in of_each if not isinstance(each, TaskFunction))
        arguments = [name for template in templates for name in template.arguments]
        arguments += [each.name for each in plain if isinstance(each, ArgumentCost)]
        computed = None
        if len(plain) < len(entries) or any(template.optional for template in templates):
            computed = ComputedLimits.of(entries, costs, signature, known, where)
        kept = _read_choice(task, where, "throttle_keep_waiting", "all", "newest", "first")
        limits = cls(
            templates=templates,
            costs=plain,
            reader=ArgumentReader.for_signature(signature, arguments, where),
            fixed=None,
            slots=find_slot_indexes(names, known),
            max_wait=max_wait,
            drop=_read_choice(task, where, "throttle_on_max_wait", "fail", "drop") == "drop",
            track=bool(getattr(task, "throttle_track", False)),
            settles=bool(getattr(task, "throttle_settles", False)),
            kept=Kept[kept.upper()],
            computed=computed,
        )
        is_fixed = computed is None and not arguments
        return replace(limits, fixed=limits.requirement((), {})) if is_fixed else limits


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


def _read_choice(task: type[Task] | Task, where: str, name: str, *allowed: str) -> str:
    """Return the value of an attribute, by default the first one that is allowed."""
    value = getattr(task, name, allowed[0])
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ConfigurationError(
            f"{where}: {name} is {shown(value)}: it must be {', '.join(others)} or {last}"
        )
    return str(value)


@contextmanager
def named(where: str) -> Iterator[None]:
    """Put the place of a mistake in front of the error."""
    try:
        yield
    except (ConfigurationError, LimitError, UnknownLimitError) as error:
        text = str(error)  # of a function it names the place already
        raise type(error)(text if text.startswith(where) else f"{where}: {text}") from error


def read_entries(
    spec: Spec, known: Mapping[str, Limits], where: str, signature: inspect.Signature | None = None
) -> tuple[Entry, ...]:
    """Read the limits that a task or a route names; without a ``signature`` only the templates.

    Raises:
        UnknownLimitError, LimitError, ConfigurationError: the text is wrong; the message names it,
            and ``where`` it is.
    """
    items = items_of_spec(spec)
    functions: Any = [item for item in items if is_function(item)]
    with named(where):
        others: Any = [item for item in items if item not in functions] if functions else spec
        templates = () if functions and not others else parse_templates(others)
        for template in templates:
            if template.name not in known:
                raise unknown_limit_error(template.name, known)
    if signature is None:
        return templates
    return (
        *templates,
        *(TaskFunction.of(function, signature, where, "throttle") for function in functions),
    )


def _signature(task: type[Task] | Task) -> inspect.Signature:
    cls = task if isinstance(task, type) else type(task)
    run = inspect.getattr_static(cls, "run")
    bound = run.__get__(task, cls) if hasattr(run, "__get__") else run
    signature = signature_of_calls(bound)
    parameters = list(signature.parameters.values())
    if task.typing is False and all(one.kind is not Parameter.VAR_KEYWORD for one in parameters):
        # The calls have other arguments than `run`, as in celery-batches.
        parameters.append(Parameter("any", Parameter.VAR_KEYWORD))
    return signature.replace(parameters=parameters)
