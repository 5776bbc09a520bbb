"""What the commands that listen on a port share: the error if they cannot, and the address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery_throttle.cli.shared.exit_codes import CommandError


@contextmanager
def listening_errors(host: str, port: int) -> Iterator[None]:
    """Context for the start of a server.

    Raises:
        CommandError: it cannot listen.
    """
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot listen on {host}, port {port}: {error.strerror}") from None


def http_url(host: str, port: int, path: str) -> str:
    """Return the address of a page; that of an IPv6 host is in brackets."""
    shown_host = f"[{host}]" if ":" in host else host
    return f"http://{shown_host}:{port}{path}"
