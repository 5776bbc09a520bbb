"""``metrics``: serves the metrics of all limits for Prometheus."""

from __future__ import annotations

import signal
from contextlib import suppress

import click

from celery_throttle.cli.serve.listening import http_url, listening_errors
from celery_throttle.cli.shared.console import interruption
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.errors import StoreError, require_extra
from celery_throttle.observe.status.stored import read_names


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9808,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--host",
    default="0.0.0.0",  # noqa: S104  # Prometheus usually runs on another machine
    show_default=True,
    help="Address to listen on; 127.0.0.1 for this machine only.",
)
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
        limiter.run_plan(read_names(limiter.observer))
    with listening_errors(host, port):
        server = start_server(limiter, port, host, max_limits=limits)
    with interruption(signal.SIGINT, signal.SIGTERM) as interrupted:
        click.echo(f"Serving metrics on {http_url(host, server.server_port, '/metrics')}")
        interrupted.wait()
    server.shutdown()
    server.server_close()
