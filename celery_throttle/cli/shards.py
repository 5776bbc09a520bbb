"""``shards``: the shards of the limits, each with its server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click
from redis.crc import key_slot

from celery_throttle.cli.shared.console import Row, Table, echo_json, terminal_width
from celery_throttle.cli.shared.options import command
from celery_throttle.cli.shared.target import Target
from celery_throttle.errors import StoreError
from celery_throttle.limits.shards import HOME_SHARD
from celery_throttle.observe.status.limits import read_page
from celery_throttle.store.script import Call, script
from celery_throttle.store.url import is_cluster_url
from celery_throttle.tasks.app_limits import AppLimits

#: Limits that one call reads.
_PAGE = 500


class ShardStatus(NamedTuple):
    """What one shard has.

    Attributes:
        shard: its name.
        server: the URL of its server, without user and password.
        slot: the hash slot of its keys; None unless the server is a cluster.
        limits: the number of its limits.
        waiting: the sum of the tasks that wait for each of them.
        error: why it cannot be read, and the numbers are missing; empty if it can.
    """

    shard: str
    server: str
    slot: int | None
    limits: int | None
    waiting: int | None
    error: str = ""


@command()
def shards(target: Target, *, as_json: bool) -> None:
    """List the shards, their servers, limits and waiting tasks.

    A task that waits for two limits counts twice. A shard that cannot be reached is listed without
    numbers. The epoch counts the changes of the map of limits to shards.
    """
    target.require_app("which has throttle_shards")
    throttle = target.throttle
    names = [HOME_SHARD] if throttle.parts is None else throttle.parts.shards
    parts = zip(map(str, names), throttle.app_parts, strict=True)
    found = [_read(name, part) for name, part in parts]
    epoch = 0 if found[0].error else _read_epoch(throttle.app_parts[0])
    if as_json:
        echo_json({"epoch": epoch, "shards": [each._asdict() for each in found]})
        return
    rows = [Row((*map(_cell, each[:5]),)) for each in found]
    table = Table(("shard", "server", ">slot", ">limits", ">waiting"), rows)
    for line in (*table.lines(terminal_width()), *_notes(found, epoch)):
        click.echo(line)


def _read(name: str, part: AppLimits) -> ShardStatus:
    url = part.store.url
    slot = key_slot(part.keys.limits.encode()) if is_cluster_url(url) else None
    limits, waiting, after = 0, 0, ""
    try:
        while True:
            page = part.run_plan(read_page(part.observer, after, _PAGE))
            limits += len(page.limits)
            waiting += sum(limit.waiting for limit in page.limits)
            if page.next is None:
                return ShardStatus(name, url, slot, limits, waiting)
            after = page.next
    except StoreError as error:
        return ShardStatus(name, url, slot, None, None, str(error))


def _read_epoch(home: AppLimits) -> int:
    call = Call(script("read"), [home.keys.shards], ["", "HGET", 1, "@epoch"])
    _, epoch = home.store.run(call)
    return int(epoch or 0)


def _cell(value: str | int | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def _notes(found: list[ShardStatus], epoch: int) -> Iterator[str]:
    yield ""
    for each in found:
        if each.error:
            yield f"{each.shard} cannot be read: {each.error}"
    yield f"epoch {epoch}"
