"""``pause``, ``resume``, ``define``, ``undefine`` and ``reset``: change a limit at run time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from celery_throttle.cli.shared.console import confirm, echo_result
from celery_throttle.cli.shared.options import (
    author_options,
    command,
    for_option,
    takes_ref,
    yes_option,
)
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import paused_text, preview_text, sentence
from celery_throttle.errors import LimitError, UnknownLimitError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status.definitions import (
    limits_below,
    preview_definition,
    preview_pause,
    preview_reset,
    preview_resume,
)
from celery_throttle.observe.status.stored import read_stored
from celery_throttle.observe.status_text import below_text, limit_text, reset_text, waiting_text
from celery_throttle.observe.text import count, format_seconds


@command(takes_ref(or_all=True), for_option("pause", "resume"), author_options)
def pause(
    target: Target,
    ref: LimitRef | None,
    *,
    lasts: float | None,
    as_json: bool,
    **author: str | None,
) -> None:
    """Pause a limit, one key of it, or all limits (--all).

    A new pause never shortens a pause that is already in force.
    """
    throttle = target.throttle
    if ref is not None:
        target.check_known(ref)
    preview = target.read(lambda observer: preview_pause(observer, ref, lasts), ref)
    if not as_json:
        endless = f"{waiting_text(preview.waiting)}; none starts until it is resumed."
        click.echo(endless if lasts is None else preview_text(preview))
    if ref is None:
        paused = throttle.pause_all(lasts, **author)
        result = {"limits": paused, "preview": preview}
        echo_result(result, _all_text("Paused", paused), as_json=as_json)
        return
    seconds = throttle[ref].pause(lasts, **author)
    result = {**_fields(ref), "seconds": seconds, "preview": preview}
    echo_result(result, f"{paused_text(limit_text(*ref), seconds, lasts)}.", as_json=as_json)


@command(takes_ref(or_all=True), author_options)
def resume(target: Target, ref: LimitRef | None, *, as_json: bool, **author: str | None) -> None:
    """Lift a pause, and change nothing else.

    The pause of a limit and the pauses of its keys are independent: lift each of them separately.
    --all lifts the pauses of all limits, but not the pauses of keys.
    """
    throttle = target.throttle
    if ref is not None:
        target.check_known(ref)
    preview = target.read(lambda observer: preview_resume(observer, ref), ref)
    result: dict[str, Any]
    if ref is None:
        names = throttle.resume_all(**author)
        result, text = {"limits": names}, _all_text("Resumed", names)
        was_paused = bool(names)
    else:
        was_paused = throttle[ref].resume(**author)
        result, text = {**_fields(ref), "was_paused": was_paused}, limit_text(*ref)
        text = f"Resumed {text}." if was_paused else f"{sentence(text)} was not paused."
    if was_paused and preview.waiting:
        text = f"{preview_text(preview)}\n{text}"
    echo_result({**result, "preview": preview}, text, as_json=as_json)


def _fields(ref: LimitRef) -> dict[str, Any]:
    return {"limit": ref.name, "key": ref.key}


def _all_text(done: str, names: list[str]) -> str:
    listed = f": {', '.join(names)}" if names else ""
    return f"{done} {count(len(names), 'limit')}{listed}."


def _parse_texts(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    try:
        return tuple(map(Limit.of, texts))
    except LimitError as error:
        whole = " ".join(texts)
        with suppress(LimitError):
            Limit.of(whole)
            raise click.BadParameter(f'a limit with spaces needs quotes: "{whole}"') from None
        raise click.BadParameter(str(error)) from None


@command(
    takes_ref(key_option=True),
    click.argument("texts", metavar="[TEXT]...", nargs=-1, callback=_parse_texts),
    click.option(
        "--weight", type=click.IntRange(1, 100), help="Weight of the lines that need the limit."
    ),
    click.option("--new", is_flag=True, help="Define a limit that did not exist before."),
    for_option("definition", "undefine"),
    author_options,
)
def define(
    target: Target,
    ref: LimitRef,
    *,
    texts: tuple[Limit, ...],
    weight: int | None,
    new: bool,
    lasts: float | None,
    as_json: bool,
    **author: str | None,
) -> None:
    """Define a limit at run time.

    The definition is in force for all workers at once, and takes precedence over the rules file and
    the code. If you give several limits, all of them must allow a task.
    """
    if not texts and weight is None:
        raise click.UsageError('give a limit, such as "50/s", or --weight, or both')
    throttle, preview = target.throttle, None
    if not new:
        try:
            target.check_known(ref)
        except UnknownLimitError as error:
            raise UnknownLimitError(f"{error}; for a new limit, add --new") from None
    if texts:
        preview = target.read(lambda observer: preview_definition(observer, ref, texts), ref)
        if not as_json:
            click.echo(preview_text(preview))
    throttle[ref].define(texts or None, weight=weight, lasts=lasts, **author)
    clauses = [str(text) for text in texts]
    result = {**_fields(ref), "clauses": clauses, "weight": weight, "seconds": lasts}
    parts = ["; ".join(clauses)] if texts else []
    parts += [f"weight {weight}"] if weight is not None else []
    until = "until undefine" if lasts is None else f"for {format_seconds(lasts)}"
    text = f"Defined {limit_text(*ref)}, {until}: {', '.join(parts)}."
    echo_result({**result, "preview": preview}, text, as_json=as_json)


@command(takes_ref(key_option=True), author_options, yes_option)
def undefine(
    target: Target, ref: LimitRef, *, yes: bool, as_json: bool, **author: str | None
) -> None:
    """Remove a definition made by define.

    The definition of the rules file or the code is in force again. A limit that neither the rules
    file nor the code of the app has is removed.
    """
    throttle = target.throttle
    target.check_known(ref)
    if not _has_definition(target, ref):
        result = {**_fields(ref), "clauses": None, "preview": None}
        text = f"{sentence(limit_text(*ref))} has no definition by define: nothing has changed."
        echo_result(result, text, as_json=as_json)
        return
    below = target.read(lambda observer: limits_below(observer, ref), ref)
    preview = target.read(lambda observer: preview_definition(observer, ref, below), ref)
    clauses = [str(one) for one in below]
    confirm(f"{preview_text(preview)}\n{below_text(clauses)}\nUndefine it?", yes=yes)
    throttle[ref].undefine(**author)
    result = {**_fields(ref), "clauses": clauses, "preview": preview}
    text = f"Undefined {limit_text(*ref)}: {'; '.join(clauses) or 'not defined'} from now on."
    echo_result(result, text, as_json=as_json)


def _has_definition(target: Target, ref: LimitRef) -> bool:
    """Whether undefine changes a limit: define made it, or its weight, or other code did."""
    (stored,) = target.read(lambda observer: read_stored(observer, [ref]), ref)
    layer = None if stored.origin is None else stored.origin.layer
    is_of_other_code = target.has_app and ref.name not in target.throttle.limits
    return layer == "run time" or stored.weight != 1 or is_of_other_code


@command(takes_ref(), author_options, yes_option)
def reset(target: Target, ref: LimitRef, *, yes: bool, as_json: bool, **author: str | None) -> None:
    """Clear the units in use, and lift the pause.

    This deletes the state of the algorithms: units in use, windows, and the rate that an adaptive
    limit has learned. Without KEY it deletes the state of the limit itself, but not of its keys.
    Slots in use, definitions, weights, waiting tasks, totals and the history stay.
    """
    throttle = target.throttle
    target.check_known(ref)
    preview = target.read(lambda observer: preview_reset(observer, ref), ref)
    confirm(f"{preview_text(preview)}\n{reset_text(ref)}\nReset it?", yes=yes)
    throttle[ref].reset(**author)
    result = {**_fields(ref), "preview": preview}
    echo_result(result, f"Reset {limit_text(*ref)}.", as_json=as_json)
