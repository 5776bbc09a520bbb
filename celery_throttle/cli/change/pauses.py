"""``pause`` and ``resume``: of a limit, of one key of it, or of all limits."""

from __future__ import annotations

import click

from celery_throttle.cli.shared.console import echo_json
from celery_throttle.cli.shared.options import (
    all_option,
    author_options,
    check_limit_or_all,
    json_option,
    key_argument,
    limit_or_all,
    pause_length_option,
    to_seconds,
)
from celery_throttle.cli.shared.preview import show_preview
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import paused_text, sentence
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.definitions import preview_pause
from celery_throttle.observe.status.stored import read_names
from celery_throttle.observe.status_text import ref_text, waiting_text
from celery_throttle.observe.text import count
from celery_throttle.observe.values import Preview


def _read_ref(limit: str | None, key: str | None, *, is_all: bool) -> LimitRef | None:
    """Return the limit and key of the arguments; None for all limits."""
    check_limit_or_all(limit, is_all=is_all)
    return None if limit is None else LimitRef(limit, key)


@click.command()
@limit_or_all
@key_argument
@all_option
@pause_length_option
@author_options
@json_option
@pass_target
def pause(
    target: Target,
    limit: str | None,
    key: str | None,
    *,
    lasts: int | None,
    reason: str | None,
    by: str | None,
    is_all: bool,
    as_json: bool,
) -> None:
    """Pause a limit, one key of it, or all limits (--all).

    A new pause never shortens a pause that is already in force.
    """
    ref, seconds = _read_ref(limit, key, is_all=is_all), to_seconds(lasts)
    throttle = target.throttle
    names = [] if ref else throttle.run_plan(read_names(throttle.observer))
    refs = [ref] if ref else [LimitRef(name, None) for name in names]
    preview = throttle.run_plan(preview_pause(throttle.observer, refs, seconds))
    if seconds is None and not as_json:
        click.echo(f"{waiting_text(preview.waiting)}; none starts until it is resumed.")
    else:
        show_preview(preview, as_json=as_json)
    if ref is None:
        _report_all(
            "paused", throttle.pause_all(seconds, reason=reason, by=by), preview, as_json=as_json
        )
        return
    paused = throttle[ref].pause(seconds, reason=reason, by=by)
    if as_json:
        echo_json({"limit": ref.name, "key": ref.key, "seconds": paused, "preview": preview})
    else:
        click.echo(f"{paused_text(ref_text(ref), paused, seconds)}.")


@click.command()
@limit_or_all
@key_argument
@all_option
@author_options
@json_option
@pass_target
def resume(
    target: Target,
    limit: str | None,
    key: str | None,
    *,
    reason: str | None,
    by: str | None,
    is_all: bool,
    as_json: bool,
) -> None:
    """Lift a pause, and change nothing else.

    The pause of a limit and the pauses of its keys are independent: lift each of them separately.
    --all lifts the pauses of all limits, but not the pauses of keys.
    """
    ref, throttle = _read_ref(limit, key, is_all=is_all), target.throttle
    if ref is None:
        _report_all("resumed", throttle.resume_all(reason=reason, by=by), None, as_json=as_json)
        return
    was_paused = throttle[ref].resume(reason=reason, by=by)
    if as_json:
        echo_json({"limit": ref.name, "key": ref.key, "was_paused": was_paused})
    elif was_paused:
        click.echo(f"Resumed {ref_text(ref)}.")
    else:
        click.echo(f"{sentence(ref_text(ref))} was not paused.")


def _report_all(done: str, names: list[str], preview: Preview | None, *, as_json: bool) -> None:
    if as_json:
        echo_json({"limits": names} | ({"preview": preview} if preview else {}))
    else:
        listed = f": {', '.join(names)}" if names else ""
        click.echo(f"{sentence(done)} {count(len(names), 'limit')}{listed}.")
