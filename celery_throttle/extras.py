"""Optional packages: says how to install one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


class MissingExtraError(click.ClickException):
    """An optional package is not installed."""


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
