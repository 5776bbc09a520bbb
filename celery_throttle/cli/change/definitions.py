"""``define``, ``undefine`` and ``reset``: change a limit at run time, and clear what is in use."""

from __future__ import annotations

import click

from celery_throttle.cli.shared.console import confirm, echo_json
from celery_throttle.cli.shared.options import (
    author_options,
    json_option,
    key_argument,
    limit_argument,
    to_seconds,
    yes_option,
)
from celery_throttle.cli.shared.params import DurationType, KeyType, LimitType
from celery_throttle.cli.shared.preview import preview_text, show_preview
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status.definitions import (
    limits_below,
    preview_definition,
    preview_reset,
)
from celery_throttle.observe.status_text import below_text, ref_text
from celery_throttle.observe.text import format_seconds
from celery_throttle.operations.author import Author


@click.command()
@limit_argument
@click.argument("texts", metavar='["50/s"]...', nargs=-1, type=LimitType())
@click.option("--key", type=KeyType(), help="Apply to this key of the limit only.")
@click.option(
    "--weight", type=click.IntRange(1, 100), help="Weight of the lines that need the limit."
)
@click.option(
    "--for",
    "lasts",
    type=DurationType(),
    help="How long the definition lasts, such as 1h.  [default: until undefine]",
)
@author_options
@json_option
@pass_target
def define(
    target: Target,
    limit: str,
    key: str | None,
    *,
    texts: tuple[Limit, ...],
    weight: int | None,
    lasts: int | None,
    reason: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Define a limit at run time.

    The definition is in force for all workers at once, and takes precedence over the rules file and
    the code. If you give several limits, all of them must allow a task.
    """
    if not texts and weight is None:
        raise click.UsageError('give a limit, such as "50/s", or --weight, or both')
    ref, throttle, seconds = LimitRef(limit, key), target.throttle, to_seconds(lasts)
    preview = None
    if texts:
        preview = throttle.run_plan(preview_definition(throttle.observer, ref, texts))
        show_preview(preview, as_json=as_json)
    author = Author.of(by, reason)
    plan = throttle.plans.define(ref, texts or None, weight, lasts=seconds, author=author)
    throttle.run_plan(plan)
    if as_json:
        clauses = [str(text) for text in texts]
        echo_json(
            {
                "limit": limit,
                "key": key,
                "clauses": clauses,
                "weight": weight,
                "seconds": seconds,
                "preview": preview,
            }
        )
        return
    parts = ["; ".join(map(str, texts))] if texts else []
    parts += [f"weight {weight}"] if weight is not None else []
    until = "until undefine" if seconds is None else f"for {format_seconds(seconds)}"
    click.echo(f"Defined {ref_text(ref)}, {until}: {', '.join(parts)}.")


@click.command()
@limit_argument
@click.option("--key", type=KeyType(), help="Apply to this key of the limit only.")
@author_options
@yes_option
@json_option
@pass_target
def undefine(
    target: Target,
    limit: str,
    key: str | None,
    *,
    reason: str | None,
    by: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove a definition made by define.

    The definition of the rules file or the code is in force again.
    """
    ref, throttle = LimitRef(limit, key), target.throttle
    throttle.run_plan(throttle.plans.check_known(ref))
    below = throttle.run_plan(limits_below(throttle.observer, ref))
    preview = throttle.run_plan(preview_definition(throttle.observer, ref, below))
    clauses = [str(one) for one in below]
    question = f"{preview_text(preview)}\n{below_text(clauses)}\nUndefine it?"
    confirm(question, yes=yes)
    throttle.run_plan(throttle.plans.undefine(ref, Author.of(by, reason)))
    if as_json:
        echo_json({"limit": limit, "key": key, "clauses": clauses, "preview": preview})
    else:
        click.echo(f"Undefined {ref_text(ref)}: {'; '.join(clauses) or 'not defined'} from now on.")


@click.command()
@limit_argument
@key_argument
@author_options
@yes_option
@json_option
@pass_target
def reset(
    target: Target,
    limit: str,
    key: str | None,
    *,
    reason: str | None,
    by: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Clear the units in use, and lift the pause.

    This deletes the state of the algorithms: units in use, windows, and the rate that an adaptive
    limit has learned. Without KEY it deletes the state of the limit itself, but not of its keys.
    Slots in use, definitions, weights, waiting tasks, totals and the history stay.
    """
    ref, throttle = LimitRef(limit, key), target.throttle
    throttle.run_plan(throttle.plans.check_known(ref))
    preview = throttle.run_plan(preview_reset(throttle.observer, ref))
    whole = "" if key else ", but not what its keys have in use"
    confirm(
        f"{preview_text(preview)}\nThis forgets the units in use and lifts the pause{whole}: more "
        f"can start in a window than {ref_text(ref)} allows.\nReset it?",
        yes=yes,
    )
    throttle[ref].reset(reason=reason, by=by)
    if as_json:
        echo_json({"limit": limit, "key": key, "preview": preview})
    else:
        click.echo(f"Reset {ref_text(ref)}.")
