"""All exceptions that this package raises on purpose, in one tree.

::

    ThrottleError
    ├── LimitError (ValueError)             a definition that cannot be used
    │   ├── LimitSyntaxError                text that does not parse
    │   ├── LimitValueError                 a number that is zero, negative or too large
    │   ├── CostError                       a cost that can never pass its limit
    │   └── KeyTemplateError                a wrong key template, or argument name in it
    ├── KeyValueError (TypeError)           an argument value that cannot be a key
    ├── LimitFunctionError                  a function that raised, or returned no limit or cost
    ├── UnknownLimitError (LookupError)     a name that no limit has
    ├── ConfigurationError                  a setting that is wrong, or contradicts another
    │   └── RulesError                      a rules file with mistakes
    ├── FanOutError                         a task that cannot be part of a fan-out
    │   └── UnknownFanOutError (LookupError)    a name that no fan-out has
    ├── QueueNotFoundError (LookupError)    a queue that the app or the broker does not have
    ├── BlockingWaitError (RuntimeError)    a blocking call in an event loop that may have to wait
    ├── MissingExtraError (ImportError)     an optional package that is not installed
    ├── PublishRejectedError                a queue of the broker that takes no more messages
    ├── StoreError                          the server replied with an error
    │   └── StoreUnavailableError           the server cannot be reached, or cannot serve now
    └── Throttled                           a limit refused a call or a task
        ├── SentRequestsError               a task has sent requests, and cannot wait so long
        ├── WaitTooLongError                the wait would exceed ``throttle_max_wait``
        ├── QueueFullError                  the line, or the queue of a ``leaky-queue``, is full
        └── KeysFullError                   ``max-keys`` other keys are in use


Messages name the offending text and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import unwrap
from typing import Any

_MAX_SHOWN_LENGTH = 100

#: How many names a message lists.
_MAX_NAMES = 20


class ThrottleError(Exception):
    """The base class of all exceptions that this package raises on purpose."""


class LimitError(ThrottleError, ValueError):
    """A limit, a cost or a key template cannot be used as it is written. Also a ``ValueError``."""


class LimitSyntaxError(LimitError):
    """Text does not parse as a rate, a limit or a name."""


class LimitValueError(LimitError):
    """A part of a limit, or an argument, parses but is not allowed: zero, negative or too large."""


class CostError(LimitError):
    """A cost is not a number above 0, or is above the burst, so that it can never pass."""


class KeyTemplateError(LimitError):
    """A key template is malformed, or names an argument that the task does not have."""


class KeyValueError(ThrottleError, TypeError):
    """A value cannot be a key or a part of one, or an argument is missing. Also a ``TypeError``."""


class LimitFunctionError(ThrottleError):
    """A function that gives limits or costs raised an error, or returned a wrong value.

    In a worker, it is also the error of a task whose function has not returned within 10 s.
    """


class UnknownLimitError(ThrottleError, LookupError):
    """No limit has this name. Also a ``LookupError``."""


class ConfigurationError(ThrottleError):
    """A setting is missing, malformed, or contradicts another one."""


class RulesError(ConfigurationError):
    """A rules file cannot be read, or has mistakes. None of its rules is used.

    Its text has a line for each mistake: ``limits.toml:3: what is wrong``.

    Attributes:
        source: The path of the file.
        mistakes: The mistakes in the order of lines, each a pair of line number, from 1, and text.
            The number is None if the mistake does not belong to one line.
    """

    def __init__(self, source: str, mistakes: list[tuple[int | None, str]]) -> None:
        self.source = source
        self.mistakes = tuple((line, text) for line, text in mistakes)
        super().__init__(source, self.mistakes)

    def __str__(self) -> str:
        return "\n".join(
            f"{self.source}: {text}" if line is None else f"{self.source}:{line}: {text}"
            for line, text in self.mistakes
        )


class FanOutError(ThrottleError):
    """A task, or an argument, cannot be part of a fan-out."""


class UnknownFanOutError(FanOutError, LookupError):
    """No fan-out has this name, or its record has expired. Also a ``LookupError``."""


class QueueNotFoundError(ThrottleError, LookupError):
    """Neither the app nor the broker has the queue for waiting tasks. Also a ``LookupError``."""


class PublishRejectedError(ThrottleError):
    """A queue of the broker takes no more messages, so waiting tasks cannot be sent to it."""


class BlockingWaitError(ThrottleError, RuntimeError):
    """A blocking call that may wait for its limits was made in a running event loop.

    It would block the loop while it waits. Nothing was taken. Also a ``RuntimeError``.
    """


class MissingExtraError(ThrottleError, ImportError):
    """An optional package is not installed. Also an ``ImportError``."""


class StoreError(ThrottleError):
    """The limits server replied with an error, or must not be used as it is configured."""


class StoreUnavailableError(StoreError):
    """The server cannot be reached, or cannot serve now; a later call may succeed.

    The message contains the URL of the server without user and password.
    """

    waited = 0.0  # seconds that the failed call took, if it was measured; for `bulk/retry.py`


@dataclass(eq=False, repr=False)
class Throttled(ThrottleError):  # noqa: N818 - an outcome to handle, not a mistake
    """A limit refused a call or a task.

    The attributes are also the ``args`` of the exception, in this order, and then those of a
    subclass: Celery rebuilds an exception in another process from its class and ``args``.

    Attributes:
        limit: The name of the limit.
        key: The encoded key of the limit; None for a limit without keys.
        retry_after: Seconds until the same request could pass. None if it never can, or if the
            limit is paused until it is resumed.
        paused: Seconds for which the limit is paused; 0.0 if it is not, infinity if it is paused
            until it is resumed.

    Example:
        >>> limiter = Limiter("memory://", {"api": "10/m"})
        >>> limiter["api"].acquire().allowed
        True
        >>> try:
        ...     limiter["api"].acquire(max_wait=2.0)
        ... except Throttled as refusal:
        ...     refusal.limit, round(refusal.retry_after)
        ('api', 6)
    """

    limit: str
    key: str | None = None
    retry_after: float | None = None
    paused: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, each.name) for each in fields(self)))

    def __str__(self) -> str:
        return f"{self._subject} refused; {self._wait}"

    @property
    def _subject(self) -> str:
        of_key = "" if self.key is None else f" (key {shown(self.key)})"
        return f"limit {shown(self.limit)}{of_key}"

    @property
    def _wait(self) -> str:
        if self.paused == math.inf:
            return "it is paused until it is resumed"
        if self.retry_after is None:
            return "this can never pass"
        paused = "it is paused, and " if self.paused else ""
        return f"{paused}this could pass in {self.retry_after:g} s"


@dataclass(eq=False, repr=False)
class SentRequestsError(Throttled):
    """A limit refused a request within a task that has sent other requests.

    The task does not start from its beginning, as it would send these again. Its call waited in the
    process, or would have waited longer than the setting ``throttle_max_wait_in_place``.

    Attributes:
        limit: See :class:`Throttled`; so for ``key``, ``retry_after`` and ``paused``.
        max_wait: The seconds that the call may wait in the process.
    """

    max_wait: float = 0.0

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. The task has sent requests already, so it does not start again: "
            f"throttle_max_wait_in_place allows a wait of {self.max_wait:g} s. Raise that, or "
            "set throttle_restart=True on the task if its requests may be sent twice"
        )


@dataclass(eq=False, repr=False)
class WaitTooLongError(Throttled):
    """A task would have to wait longer than its ``throttle_max_wait``.

    Attributes:
        retry_after: The expected wait in seconds.
        max_wait: The seconds that the task may wait.
    """

    max_wait: float = 0.0

    def __str__(self) -> str:
        return f"{self._subject}: {self._wait}; throttle_max_wait allows {self.max_wait:g} s"


@dataclass(eq=False, repr=False)
class QueueFullError(Throttled):
    """The lines of a limit hold ``max-waiting`` tasks, or the queue of a ``leaky-queue`` is full.

    Attributes:
        retry_after: None, because the time is unknown.
        max_waiting: The number of tasks that may wait; None for the queue of a ``leaky-queue``.
    """

    max_waiting: int | None = None

    def __str__(self) -> str:
        bound = "" if self.max_waiting is None else f": max-waiting {self.max_waiting}"
        return f"{self._subject}: its queue is full{bound}"


@dataclass(eq=False, repr=False)
class KeysFullError(Throttled):
    """``max-keys`` other keys are in use, so there is no room for the key of a task.

    Attributes:
        retry_after: Seconds until the first of these keys is no longer in use, or 1 if all of them
            have waiting tasks. None if the task names more keys than may ever be in use at once.
        max_keys: The number of keys that may be in use.
    """

    max_keys: int = 0

    def __str__(self) -> str:
        return f"{self._subject}: no room for its key: max-keys {self.max_keys}; {self._wait}"


@contextmanager
def require_extra(package: str, feature: str, extra: str) -> Iterator[None]:
    """Context for the import of an optional package, for a feature that the message names.

    ``extra``: the extra of this package that installs it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{feature} needs {package}, which is not installed: "
            f'pip install "celery-global-throttle[{extra}]"'
        ) from error


def nearest(name: str, known: Iterable[str], otherwise: str = "allowed") -> str:
    """Return what to write for a wrong name: the most similar one, or else the first of all."""
    names = sorted(known)
    similar = get_close_matches(name, names, 1)
    if similar:
        return f"write {similar[0]!r}"
    listed = ", ".join(map(repr, names[:_MAX_NAMES])) or "none"
    more = len(names) - _MAX_NAMES
    return f"{otherwise}: {listed}" + (f" and {more:,} more" if more > 0 else "")


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for a message; of another callable, that of its type."""
    function = unwrap(function)
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def raised_error(text: str, error: BaseException) -> LimitFunctionError:
    """Return the error for what a function of a user has raised; ``text`` names the function."""
    return LimitFunctionError(f"{text} raised {type(error).__name__}: {shown(str(error))}")


def result_error(
    text: str, result: object, error: ThrottleError, allowed: str = ""
) -> ThrottleError:
    """Return the error for what a function has returned; ``text`` names the function."""
    if isinstance(error, UnknownLimitError):
        return UnknownLimitError(f"{text} returned {shown(result)}: {error}")
    what = f"; allowed: {allowed}" if allowed else ""
    return LimitFunctionError(f"{text} returned {shown(result)}: {error}{what}")


def shown(value: object) -> str:
    """Return ``repr(value)`` for a message: at most 100 characters, and never an error."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the reported error
        return f"<{type(value).__name__}>"
    if len(text) <= _MAX_SHOWN_LENGTH:
        return text
    return text[: _MAX_SHOWN_LENGTH - 3] + "..."
