"""A private server for a session of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import pytest
import redis

from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.tasks.app_limits import active_throttles
from celery_throttle.testing.server import start_server


@contextmanager
def private_server(directory: Path) -> Iterator[str]:
    """Start a server with its files in a directory, for the time of a ``with``; its URL."""
    with ExitStack() as ends:
        try:
            url = start_server(directory, ends)
        except click.ClickException as error:
            pytest.fail(
                f"throttle_server cannot start a server: {error.message}\n"
                'The embedded one comes with: pip install "celery-global-throttle[test-server]"',
                pytrace=False,
            )
        yield url


def delete_limits(url: str) -> None:
    """Delete the keys of limits and lines of all apps; others, such as a broker's, stay."""
    with redis.Redis.from_url(url) as client:
        prefixes = {throttle.settings.prefix for throttle in active_throttles()}
        for prefix in {DEFAULT_PREFIX, *prefixes}:
            names = list(client.scan_iter(f"{_escaped(prefix)}:*", count=1000))
            if names:
                client.delete(*names)


def _escaped(prefix: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in prefix)
