"""Packages that only some commands need, and how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


class MissingExtraError(click.ClickException):
    """A package is missing that what was asked for needs."""


@contextmanager
def needed(package: str, what: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package: says how to install it if it is missing.

    Args:
        package: the package that is imported.
        what: who needs it, for the message.
        extra: the extra of ours that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{what} needs {package}, which is not installed: "
            f'pip install "celery-global-throttle[{extra}]"'
        ) from error
