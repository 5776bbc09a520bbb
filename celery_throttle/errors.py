"""Every exception this package raises, in one tree.

::

    ThrottleError
    ├── LimitError (ValueError)             a definition that cannot be used
    │   ├── LimitSyntaxError                text that does not parse
    │   ├── LimitValueError                 a number that is zero, negative or too large
    │   ├── CostError                       a cost that can never fit its limit
    │   └── KeyTemplateError                a key template, or an argument name in it
    ├── KeyValueError (TypeError)           an argument value that cannot be a key
    ├── UnknownLimitError (LookupError)     a name that no limit has
    ├── ConfigurationError                  a setting that is wrong, or contradicts another
    ├── FanOutError                         a task that cannot be part of a fan-out
    │   └── UnknownFanOutError (LookupError)    a name that no fan-out has
    ├── StoreError                          the server answered, but not as it must
    │   └── StoreUnavailableError           the server cannot be reached, or serve now
    └── Throttled                           the limit refused
        ├── WaitTooLongError                the wait would exceed ``throttle_max_wait``
        ├── QueueFullError                  the queue of a ``leaky-queue``, or ``max-waiting``
        └── KeysFullError                   ``max-keys`` other keys are in use


Messages name the offending text and say what is allowed.
"""

from __future__ import annotations

import math

_SHOWN_CHARACTERS = 100


class ThrottleError(Exception):
    """The root: catch this to catch everything this package raises on purpose."""


class LimitError(ThrottleError, ValueError):
    """A limit, a cost or a key template that cannot be used as it is written."""


class LimitSyntaxError(LimitError):
    """Text that does not parse as a rate, a limit or a name."""


class LimitValueError(LimitError):
    """A part of a limit that is written well but not allowed: zero, negative, too large."""


class CostError(LimitError):
    """A cost that is no number above 0, or above the burst: it could never pass."""


class KeyTemplateError(LimitError):
    """A malformed ``"mail:{tenant_id}"``, or one that names an argument the task does not have."""


class KeyValueError(ThrottleError, TypeError):
    """A value that cannot be (part of) a key, or an argument that was not given."""


class UnknownLimitError(ThrottleError, LookupError):
    """No limit has this name."""


class ConfigurationError(ThrottleError):
    """A setting that is missing, malformed, or at odds with another one."""


class FanOutError(ThrottleError):
    """A task, or an argument, that cannot be part of a fan-out."""


class UnknownFanOutError(FanOutError, LookupError):
    """No fan-out has this name, or nothing is known of it any more."""


class StoreError(ThrottleError):
    """The server that keeps the limits answered with an error, or must not be used as it is."""


class StoreUnavailableError(StoreError):
    """The server cannot be reached, or cannot serve now: a later call may pass.

    The message names its URL, without user and password.
    """


class Throttled(ThrottleError):  # noqa: N818 - an outcome to act on, named as users speak of it
    """A limit refused.

    The attributes are also the exception's ``args``, in this order: Celery rebuilds an exception
    in another process from its class and its ``args``.

    Attributes:
        limit: The name of the limit that binds.
        key: The encoded key of that limit; None for a limit without keys.
        retry_after: Seconds until the same request could pass; None if it never can, or if the
            limit is paused until it is resumed.
        paused: Seconds for which that limit is paused: 0.0 if it is not, infinity until it is
            resumed.
    """

    def __init__(
        self,
        limit: str,
        key: str | None = None,
        retry_after: float | None = None,
        paused: float = 0.0,
    ) -> None:
        self.limit = limit
        self.key = key
        self.retry_after = retry_after
        self.paused = paused
        super().__init__(limit, key, retry_after, *self._pause)

    def __str__(self) -> str:
        return f"{self._subject} refused; {self._wait}"

    @property
    def _pause(self) -> tuple[float, ...]:
        """The last of ``args``, left out if there is no pause: older versions do not know it."""
        return (self.paused,) if self.paused else ()

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


class WaitTooLongError(Throttled):
    """A task would have to wait longer than its ``throttle_max_wait``.

    Attributes:
        limit: See :class:`Throttled`; so are ``key``, ``paused`` and ``retry_after``, the expected
            wait.
        max_wait: The seconds it may wait.
    """

    def __init__(
        self,
        limit: str,
        key: str | None,
        retry_after: float | None,
        max_wait: float,
        paused: float = 0.0,
    ) -> None:
        super().__init__(limit, key, retry_after, paused)
        self.max_wait = max_wait
        self.args = (limit, key, retry_after, max_wait, *self._pause)

    def __str__(self) -> str:
        return f"{self._subject}: {self._wait}; throttle_max_wait allows {self.max_wait:g} s"


class QueueFullError(Throttled):
    """As many tasks wait for a ``leaky-queue`` as it is long, or as its ``max-waiting`` allows.

    Attributes:
        limit: See :class:`Throttled`; so is ``key``. ``retry_after`` is None, as nobody knows.
        max_waiting: The tasks that may wait; None if the queue of a ``leaky-queue`` is full.
    """

    def __init__(
        self,
        limit: str,
        key: str | None = None,
        retry_after: float | None = None,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__(limit, key, retry_after)
        self.max_waiting = max_waiting
        self.args = (limit, key, retry_after, max_waiting)

    def __str__(self) -> str:
        bound = "" if self.max_waiting is None else f": max-waiting {self.max_waiting}"
        return f"{self._subject}: its queue is full{bound}"


class KeysFullError(Throttled):
    """A task is the first of its key, and as many others are in use as ``max-keys`` allows.

    Attributes:
        limit: See :class:`Throttled`; so is ``key``.
        retry_after: Seconds until the earliest of the keys in use is forgotten, or a second if all
            of them have waiting tasks; None if the task names more keys than may ever be in use.
        max_keys: The keys that may be in use.
    """

    def __init__(
        self, limit: str, key: str | None, retry_after: float | None, max_keys: int
    ) -> None:
        super().__init__(limit, key, retry_after)
        self.max_keys = max_keys
        self.args = (limit, key, retry_after, max_keys)

    def __str__(self) -> str:
        return f"{self._subject}: no room for its key: max-keys {self.max_keys}; {self._wait}"


def shown(value: object) -> str:
    """Return ``repr(value)`` for a message: at most 100 characters, and never an error."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken repr must not hide the error being reported
        return f"<{type(value).__name__}>"
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[: _SHOWN_CHARACTERS - 3] + "..."
