"""``shards``, and ``shards move``: moves limits to another shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from celery_throttle.cli.shards import over_option
from celery_throttle.cli.shards import shards as list_shards
from celery_throttle.cli.shared.console import confirm, echo_result
from celery_throttle.cli.shared.options import (
    NAME,
    author_options,
    command,
    json_option,
    yes_option,
)
from celery_throttle.cli.shared.target import Target
from celery_throttle.limiter.moves import MovePreview
from celery_throttle.limits.shards import HOME, ShardMap
from celery_throttle.observe.status_text import waiting_text
from celery_throttle.observe.text import count, format_seconds


@click.group(invoke_without_command=True, help=list_shards.help)
@over_option
@json_option
@click.pass_context
def shards(ctx: click.Context, *, over: float, as_json: bool) -> None:
    """List the shards, or run a command of the group."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_shards, over=over, as_json=as_json)


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
