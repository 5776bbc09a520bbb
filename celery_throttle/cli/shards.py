"""``shards``: the shards of the limits, and the nodes that have them; ``shards move``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
from redis.crc import key_slot

from celery_throttle.cli.shared.console import (
    Row,
    Table,
    confirm,
    echo_json,
    echo_result,
    echo_table,
)
from celery_throttle.cli.shared.options import (
    NAME,
    IntervalType,
    author_options,
    command,
    json_option,
    yes_option,
)
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.errors import StoreError
from celery_throttle.limiter.moves import MovePreview
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.shards import HOME, HOME_SHARD, ShardMap
from celery_throttle.observe.merged import Reading
from celery_throttle.observe.nodes import (
    Load,
    Nodes,
    NodeStatus,
    ShardStatus,
    find_warnings,
    nodes_between,
    read_load,
    slot_core_between,
)
from celery_throttle.observe.status_text import age, lost_texts, waiting_text
from celery_throttle.observe.text import amount, count, format_seconds
from celery_throttle.operations.plan import read_call
from celery_throttle.store.client import Store
from celery_throttle.store.url import is_cluster_url
from celery_throttle.tasks.app_limits import AppLimits

_SHARD_HEAD = ("shard", "node", ">slot", ">limits", ">waiting", ">granted/s", ">core", ">outage")
_NODE_HEAD = ("node", ">shards", ">core", ">memory", ">replicas")

_MEBIBYTE = 1 << 20


@click.group(invoke_without_command=True)
@click.option(
    "--over",
    type=IntervalType(0.1),
    default=1.0,
    show_default=True,
    help="Seconds over which the figures per second are measured.",
)
@json_option
@pass_target
def shards(target: Target, *, over: float, as_json: bool) -> None:
    """List the shards and their nodes, and how busy they are.

    A task that waits for two limits counts twice. A shard that cannot be reached is listed without
    numbers. The epoch counts the changes of the map of limits to shards.
    """
    if click.get_current_context().invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("give --json behind move")
        return
    throttle = target.throttle
    found, nodes, lost = _measure(throttle, over)
    warnings = [*find_warnings(found, nodes)]
    epoch = 0
    if not found[0].error:
        home = throttle.app_parts[0]
        _, stored = home.store.run(read_call("", ("HGET", home.keys.shards, "@epoch")))
        epoch = int(stored or 0)
    if as_json:
        listed = {
            "shards": [one._asdict() for one in found],
            "nodes": [one._asdict() for one in nodes],
        }
        echo_json({"epoch": epoch, **listed, "warnings": warnings})
        return
    for head, rows in ((_SHARD_HEAD, map(_shard_row, found)), (_NODE_HEAD, map(_node_row, nodes))):
        echo_table(Table(head, [*rows]))
        click.echo()
    for line in (*lost_texts(lost), *warnings, f"epoch {epoch}"):
        click.echo(line)


def _measure(
    throttle: AppLimits, seconds: float
) -> tuple[list[ShardStatus], list[NodeStatus], Mapping[str, StoreError]]:
    """Return the shards, their nodes, and why shards cannot be read."""
    names = [HOME_SHARD] if throttle.parts is None else throttle.parts.shards
    stores = {
        str(name): (part.store, _slot_of(part))
        for name, part in zip(names, throttle.app_parts, strict=True)
    }
    before = _read(throttle)
    nodes = Nodes({name: stores[name] for name in before.values})
    try:
        first = nodes.read()
        time.sleep(seconds)
        after, last, unused = _read(throttle), nodes.read(), nodes.find_unused()
    finally:
        nodes.close()

    def status(name: str, store: Store, slot: int | None) -> ShardStatus:
        if name not in before.values or name not in after.values:
            error = {**before.lost, **after.lost}[name]
            return ShardStatus(name, store.url, slot=slot, error=str(error))
        old, new = before.values[name], after.values[name]
        node = nodes.of_shard.get(name)
        return ShardStatus(
            *(name, store.url, node, slot, new.limits, new.waiting),
            granted=max(0.0, new.granted - old.granted) / ((new.at - old.at) / MICROSECONDS),
            core=None if node is None else slot_core_between(first[node], last[node], slot),
            outage_seconds=new.outage_seconds,
        )

    found = [status(name, *place) for name, place in stores.items()]
    listed = nodes_between(first, last, found)
    listed += [NodeStatus(address, 0, None, None, None) for address in unused]
    return found, listed, {**before.lost, **after.lost}


def _read(throttle: AppLimits) -> Reading[Load]:
    """Return the load of each shard. A single one may be lost, too."""
    try:
        return throttle.read(read_load)
    except StoreError as error:
        return Reading({}, {str(HOME_SHARD): error})


def _slot_of(part: AppLimits) -> int | None:
    return key_slot(part.keys.limits.encode()) if is_cluster_url(part.store.url) else None


def _shard_row(one: ShardStatus) -> Row:
    return Row(
        (
            one.shard,
            one.node or one.server,
            _cell(one.slot, str),
            _cell(one.limits),
            _cell(one.waiting),
            _cell(one.granted, lambda number: amount(number, 1)),
            _cell(one.core, "{:.1%}".format),
            _cell(one.outage_seconds, age),
        )
    )


def _node_row(one: NodeStatus) -> Row:
    memory = _cell(one.memory, lambda size: f"{size / _MEBIBYTE:,.1f} MiB")
    return Row(
        (one.node, str(one.shards), _cell(one.core, "{:.1%}".format), memory, _cell(one.replicas))
    )


def _cell(value: Any, text: Callable[[Any], str] = "{:,}".format) -> str:
    return "-" if value is None else text(value)


@command(
    click.argument("limits", metavar="LIMIT...", type=NAME, nargs=-1, required=True),
    click.argument("shard", metavar="SHARD"),
    author_options,
    yes_option,
    group=shards,
)
def move(
    target: Target,
    limits: Sequence[str],
    shard: str,
    *,
    as_json: bool,
    yes: bool,
    **author: str | None,
) -> None:
    """Move limits with all their keys to another shard, while workers run.

    Limits that tasks need in one call move together. Limits with a rate begin used up; slots in use
    are awaited. If the command is interrupted, the same command goes on. This command needs the
    app, whose throttle_shards has the shard in all processes.
    """
    target.require_app("which has throttle_shards")
    throttle = target.throttle
    found = throttle.preview_move(limits, shard)
    for one in () if as_json else found:
        click.echo(_preview_text(one, shard))
    confirm(f"Move {count(len(found), 'limit')} to shard {shard}?", yes=yes)
    throttle.move_to_shard(limits, shard, **author)
    settings = [*_settings_texts(throttle.settings.shards, limits, shard)]
    done = f"Moved {count(len(found), 'limit')} to shard {shard}: {', '.join(limits)}."
    result = {"shard": shard, "moves": [one._asdict() for one in found], "settings": settings}
    echo_result(result, "\n".join([done, *settings]), as_json=as_json)


def _preview_text(one: MovePreview, shard: str) -> str:
    """Return what a move costs: ``"limit mail, from shard home to shard erp: ..."``."""
    costs = [waiting_text(one.waiting)]
    if one.slots_used:
        costs.append(f"{count(one.slots_used, 'slot')} in use, which the move waits for")
    if one.pause:
        costs.append(
            f"{count(one.lost, 'unit')} lost (each key loses its own), and no start for up to "
            f"{format_seconds(one.pause)}"
        )
    return f"limit {one.limit}, from shard {one.source} to shard {shard}: {'; '.join(costs)}"


def _settings_texts(shard_map: ShardMap, names: Sequence[str], shard: str) -> Iterator[str]:
    """Yield what to change in the settings, which still give the limits to other shards."""
    proposed = ShardMap(shard_map.entries)
    for name in names:
        entry = proposed.entry_of(name)
        if (HOME if entry is None else entry.name) == shard:
            continue
        changes = []
        if entry is not None:
            changes.append(f"let no pattern in throttle_shards[{entry.name!r}] match it")
        if shard != HOME:
            changes.append(f"add it to throttle_shards[{shard!r}]['limits']")
        yield f"Now change the setting for {name!r}: {', and '.join(changes)}."
