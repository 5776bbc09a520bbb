"""``web``: serves a page of all limits for a browser."""

from __future__ import annotations

import os
import signal
from ipaddress import ip_address
from pathlib import Path

import click

from celery_throttle.cli.serve.listening import http_url, listening_errors
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.errors import require_extra, shown

_PASSWORD_VARIABLE = "THROTTLE_WEB_PASSWORD"  # noqa: S105  # not a password, but its variable


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5556,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Others than those of this machine need a password.",
)
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
    help="Show the arguments of a waiting task on its page, shortened as in Celery's events.",
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
    password = _read_password(password_file)
    if not password and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} is open to other machines: give a password by --password-file or "
            f"{_PASSWORD_VARIABLE}, or listen on 127.0.0.1"
        )
    names = [name.strip() for name in actions.split(",") if name.strip()]
    for name in {*names} - {*ACTIONS, "all"}:
        raise click.UsageError(
            f"--actions: {shown(name)} is unknown; allowed: all, or a list of {', '.join(ACTIONS)}"
        )
    allowed = ACTIONS if "all" in names else names
    with listening_errors(host, port):
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
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise click.UsageError(f"--password-file {file}: {error.strerror}") from None
    except UnicodeError:
        raise click.UsageError(f"--password-file {file} is not UTF-8") from None
    if not lines or not lines[0]:
        raise click.UsageError(
            f"--password-file {file}: its first line is empty; allowed: a password"
        )
    return lines[0]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
