"""Functions that users give for limits and costs: each is a function of a task's arguments."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import MethodType
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import (
    ConfigurationError,
    ThrottleError,
    function_name,
    raised_error,
)
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limits.key_template import ArgumentReader, KeyTemplate

logger = get_logger(__name__)

#: Seconds after which a function is reported: a worker starts no other task meanwhile.
_SLOW_SECONDS = 1.0

_COLLECTING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class TaskFunction:
    """A function of a task's arguments. It is given those that it names, as a template is.

    A function with ``*args`` or ``**kwargs`` is given all, as the caller has passed them. Made by
    :meth:`of`.
    """

    function: Callable[..., Any]
    text: str  #: the task and the function, for messages
    positional: int  #: how many arguments are passed by position
    keywords: tuple[str, ...]  #: the names of those after them
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
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # some functions in C have none
            return cls(function, text, 0, (), None)
        if any(one.kind in _COLLECTING for one in parameters):
            return cls(function, text, 0, (), None)
        takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in signature.parameters.values())
        named = [
            one
            for one in parameters
            if one.default is Parameter.empty or takes_any or one.name in signature.parameters
        ]
        defaults = {one.name: one.default for one in named if one.default is not Parameter.empty}
        names = [one.name for one in named]
        positional = sum(one.kind is Parameter.POSITIONAL_ONLY for one in named)
        reader = ArgumentReader.for_signature(signature, names, text, defaults)
        return cls(function, text, positional, tuple(names[positional:]), reader)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the function returns for the arguments of a call.

        Raises:
            LimitFunctionError: it raised an error that is not one of this package.
            KeyValueError: the call lacks an argument.
        """
        began = time.monotonic()
        try:
            if self.reader is None:
                return self.function(*args, **kwargs)
            values = self.reader.read(args, kwargs)
            named = dict(zip(self.keywords, values[self.positional :], strict=True))
            return self.function(*values[: self.positional], **named)
        except ThrottleError:
            raise
        except Exception as error:
            raise raised_error(self.text, error) from error
        finally:
            seconds = time.monotonic() - began
            if seconds > _SLOW_SECONDS:
                logger.error(
                    "%s took %.1f s, and this process did nothing else meanwhile. Compute the "
                    "value before the task is sent, and pass it as an argument",
                    self.text,
                    seconds,
                )


def read_attribute(task: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of a task; a function as it was given to the decorator.

    Python binds a function that is an attribute of a class to the task. Only that with a parameter
    ``self`` wants it.
    """
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
