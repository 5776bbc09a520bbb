"""``workers``: the live workers, and those that were lost lately."""

from __future__ import annotations

import click

from celery_throttle.cli.shared.console import Row, Table, echo_json, echo_table
from celery_throttle.cli.shared.options import command, most_option
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import clock, zone
from celery_throttle.observe.status.fleet import WorkerStatus, read_workers
from celery_throttle.observe.status_text import age, to_json
from celery_throttle.observe.text import count


@command(most_option(500, "live workers, and of lost ones"))
def workers(target: Target, *, most: int, as_json: bool) -> None:
    """List the live workers, and those that were lost lately.

    Those that were lost in the last 15 minutes are listed. A lost worker has sent no heartbeat: it
    was killed, is stopped, or cannot reach the server. Its claims return to their lines when its
    lease ends.
    """
    found = target.read(lambda observer: read_workers(observer, most))
    if as_json:
        echo_json({"workers": [to_json(one._asdict()) for one in found]})
        return
    if found:
        echo_table(Table(("worker", "state", ">claims", ">return in"), [*map(_row, found)]))
        click.echo()
    live = sum(one.live for one in found)
    click.echo(f"{count(live, 'live worker')}, {count(len(found) - live, 'lost worker')}")


def _row(one: WorkerStatus) -> Row:
    state = "live" if one.live else "lost"
    if one.lost is not None:
        state += f" since {clock(one.lost)} {zone()}"
    returns = age(max(0.0, one.lease)) if one.claims and not one.live else "-"
    return Row((one.name, state, f"{one.claims:,}", returns))
