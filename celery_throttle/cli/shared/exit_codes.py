"""The exit codes of the commands; ``docs/reference/commands.md`` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import click

from celery_throttle.errors import (
    ConfigurationError,
    KeyValueError,
    LimitError,
    RulesError,
    StoreUnavailableError,
    ThrottleError,
    UnknownFanOutError,
    UnknownLimitError,
)


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1  #: refused, cancelled by the user, or failed
    USAGE = 2  #: wrong options, arguments or settings; click exits with it as well
    UNREACHABLE = 3  #: a server cannot be reached
    NOT_FOUND = 4  #: there is no such limit, task or fan-out


#: The exit code of each error; the first class that matches counts.
_CODES: tuple[tuple[type[ThrottleError], ExitCode], ...] = (
    (StoreUnavailableError, ExitCode.UNREACHABLE),
    (UnknownLimitError, ExitCode.NOT_FOUND),
    (UnknownFanOutError, ExitCode.NOT_FOUND),
    (RulesError, ExitCode.FAILED),
    (ConfigurationError, ExitCode.USAGE),
    (LimitError, ExitCode.USAGE),
    (KeyValueError, ExitCode.USAGE),
    (ThrottleError, ExitCode.FAILED),
)


class CommandError(click.ClickException):
    """An error that ends a command with an exit code, and is shown as one line."""

    def __init__(self, message: str, code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = int(code)  # click types it as an attribute of the class


class ArgumentError(CommandError):
    """A wrong argument or option. Other than ``click.UsageError`` it prints no usage."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


@contextmanager
def server_errors(server: Any, name: str) -> Iterator[None]:
    """Context for calls of a broker or a result backend: their errors become one line.

    ``server``: the connection, or the backend; ``name``: of it, in words.

    Raises:
        CommandError: it cannot be reached, or refuses a call.
    """
    from kombu.exceptions import OperationalError  # noqa: PLC0415  # at each call of celery

    lost = {*getattr(server, "connection_errors", ()), OperationalError, OSError}
    try:
        yield
    except tuple(lost - {KeyError}) as error:  # kombu's; it may be a fault of the code as well
        text = f"the {name} cannot be reached: {error}"
        raise CommandError(text, ExitCode.UNREACHABLE) from None
    except getattr(server, "channel_errors", ()) as error:
        raise CommandError(f"the {name} has refused a call: {error}") from None


def as_click_error(error: ThrottleError) -> CommandError:
    """Return an error of this package as an error of a command."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    return CommandError(str(error), code)
