"""Functions that users give for limits and costs: each is a function of a task's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from types import MethodType
from typing import Any

from celery_throttle.errors import (
    ConfigurationError,
    ThrottleError,
    function_name,
    raised_error,
)
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.key_template import ArgumentReader, KeyTemplate

_COLLECTING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class TaskFunction:
    """A function of a task's arguments. It is given those that it names, as a template is.

    A function with ``*args`` or ``**kwargs`` is given all, as the caller has passed them. Made by
    :meth:`of`.
    """

    function: Callable[..., Any]
    text: str  #: the task and the function, for messages
    keywords: tuple[str, ...]  #: the names of the arguments that are passed by name, the last ones
    reader: ArgumentReader | None  #: None for a function that is given all

    @classmethod
    def of(
        cls, function: Callable[..., Any], signature: Signature, where: str, option: str
    ) -> TaskFunction:
        """Check a function; ``where``: the task, ``option``: the attribute that it is the value of.

        Raises:
            ConfigurationError: the function is asynchronous.
            KeyTemplateError: it names an argument that the task does not have.
        """
        text = f"{where}: the {option} function {function_name(function)!r}"
        call = type(function).__call__
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            raise ConfigurationError(f"{text} is async; allowed: a plain function")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some functions in C have none
            return cls(function, text, (), None)
        if any(one.kind in _COLLECTING for one in parameters):
            return cls(function, text, (), None)
        takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in signature.parameters.values())
        named = [
            one
            for one in parameters
            if one.default is Parameter.empty or takes_any or one.name in signature.parameters
        ]
        defaults = {one.name: one.default for one in named if one.default is not Parameter.empty}
        names = [one.name for one in named]
        reader = ArgumentReader.for_signature(signature, names, text, defaults)
        # As many as possible are passed by position, which takes less time.
        first = 0
        while first < len(named) and named[first] is parameters[first]:
            if named[first].kind not in _POSITIONAL:
                break
            first += 1
        return cls(function, text, tuple(names[first:]), reader)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the function returns for the arguments of a call.

        Raises:
            LimitFunctionError: it raised an error that is not one of this package.
            KeyValueError: the call lacks an argument.
        """
        try:
            if self.reader is None:
                return self.function(*args, **kwargs)
            values = self.reader.read(args, kwargs)
            if not self.keywords:
                return self.function(*values)
            first = len(values) - len(self.keywords)
            named = dict(zip(self.keywords, values[first:], strict=True))
            return self.function(*values[:first], **named)
        except ThrottleError:
            raise
        except Exception as error:
            raise raised_error(self.text, error) from error


def read_attribute(task: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of a task; a function as it was given to the decorator.

    Python binds a function that is an attribute of a class to the task. Only that with a parameter
    ``self`` wants it.
    """
    given = inspect.getattr_static(task, name, None)
    if isinstance(given, partial):  # Python 3.13 warns that later ones bind it, too
        return given
    value = getattr(task, name, default)
    if isinstance(value, MethodType) and value.__self__ is task:
        first = next(iter(inspect.signature(value.__func__).parameters), "")
        return value if first == "self" else value.__func__
    return value


def items_of_spec(spec: Any) -> list[Any]:
    """Return the limits of a task, one or several, as a list."""
    return list(spec) if isinstance(spec, (list, tuple)) else [spec]


def is_function(item: object) -> bool:
    """Whether a limit of a task is a function that returns limits."""
    return callable(item) and not isinstance(item, LimitHandle)


def texts_of(spec: Any) -> list[str]:
    """Return the limits of a task as people write them; of a function, what names it."""
    return [
        f"function {function_name(item)}" if is_function(item) else KeyTemplate.of(item).text
        for item in items_of_spec(spec)
    ]


def text_of(cost: Any) -> Any:
    """Return the cost of a task; of a function, what names it."""
    if isinstance(cost, Mapping):
        return {name: text_of(each) for name, each in cost.items()}
    return f"function {function_name(cost)}" if callable(cost) else cost
