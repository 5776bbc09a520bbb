"""``metrics`` and ``web``: serve metrics for Prometheus, and a page for a browser."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

import click

from celery_throttle.cli.shared.console import interruption
from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.shared.options import Decorator
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.errors import StoreError, require_extra
from celery_throttle.observe.status.stored import read_names

_PASSWORD_VARIABLE = "THROTTLE_WEB_PASSWORD"  # noqa: S105  # not a password, but its variable


def _listen_options(port: int, host: str, note: str) -> Decorator:
    """Return a decorator that adds the options where to listen, with these defaults."""
    add_host: Decorator = click.option(
        "--host", default=host, show_default=True, help=f"Address to listen on{note}"
    )
    add_port: Decorator = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help="Port to listen on; 0 for any free port.",
    )
    return lambda function: add_port(add_host(function))


@click.command()
@_listen_options(9808, "0.0.0.0", "; 127.0.0.1 for this machine only.")  # noqa: S104  # Prometheus usually runs on another machine
@click.option(
    "--limits",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="The most limits to show, by name.",
)
@pass_target
def metrics(target: Target, port: int, host: str, limits: int) -> None:
    """Serve metrics for Prometheus, until Ctrl-C.

    Each scrape reads the server that keeps the limits, so one process serves the metrics of the
    whole fleet. Needs the extra metrics.
    """
    with require_extra("prometheus_client", "the command metrics", "metrics"):
        from celery_throttle.observe.metrics.prometheus import start_server  # noqa: PLC0415  # an extra
    limiter = target.limiter
    with suppress(StoreError):  # the page shows it
        limiter.read(read_names)
    with _listening_errors(host, port):
        server = start_server(limiter, port, host, max_limits=limits)
    with interruption(signal.SIGINT, signal.SIGTERM) as interrupted:
        click.echo(f"Serving metrics on {http_url(host, server.server_port, '/metrics')}")
        interrupted.wait()
    server.shutdown()
    server.server_close()


@click.command()
@_listen_options(5556, "127.0.0.1", ". Others than those of this machine need a password.")
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File whose first line is the password of the page, for any user name. Default: the "
    f"variable {_PASSWORD_VARIABLE}, or else no password.",
)
@click.option(
    "--actions",
    default="",
    metavar="NAMES",
    help="What users of the page may do, such as pause,resume; or all.  [default: nothing]",
)
@click.option(
    "--show-arguments",
    is_flag=True,
    help="Show the arguments of a waiting task on its page, shortened as in Celery's events. Needs "
    "the app.",
)
@pass_target
def web(
    target: Target,
    port: int,
    host: str,
    *,
    password_file: Path | None,
    actions: str,
    show_arguments: bool,
) -> None:
    """Serve a web page of all limits, until Ctrl-C.

    The page shows limits, waiting tasks, fan-outs, workers and changes. It changes nothing
    without --actions. Needs the extra web.
    """
    with require_extra("flask", "the command web", "web"):
        from celery_throttle.web.security import ACTIONS  # noqa: PLC0415  # an extra
        from celery_throttle.web.server import make_server, port_of  # noqa: PLC0415  # as above
    if show_arguments:
        target.require_app("which can read the messages of tasks")
    password = _read_password(password_file)
    if not password and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} is open to other machines: give a password by --password-file or "
            f"{_PASSWORD_VARIABLE}, or listen on 127.0.0.1"
        )
    names = {name.strip() for name in actions.split(",") if name.strip()}
    allowed = names - {"all"} | {*ACTIONS} if "all" in names else names
    with _listening_errors(host, port):
        server = make_server(
            target.limiter, host, port, password, allowed, show_arguments=show_arguments
        )
    click.echo(f"Serving the page on {http_url(host, port_of(server), '/')}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    server.run()


def _read_password(file: Path | None) -> str:
    """Return the password; empty if there is none."""
    if file is None:
        return os.environ.get(_PASSWORD_VARIABLE, "")
    try:
        with file.open(encoding="utf-8") as lines:
            password = lines.readline().rstrip("\n")
    except OSError as error:
        raise click.UsageError(f"--password-file {file}: {error.strerror}") from None
    except UnicodeError:
        raise click.UsageError(f"--password-file {file} is not UTF-8") from None
    if not password:
        raise click.UsageError(
            f"--password-file {file}: its first line is empty; allowed: a password"
        )
    return password


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _listening_errors(host: str, port: int) -> Iterator[None]:
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
