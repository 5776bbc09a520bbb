"""``check`` and ``dump``: rules files."""

from __future__ import annotations

import click

from celery_throttle.cli.console import echo_json
from celery_throttle.cli.exit_codes import ExitCode
from celery_throttle.cli.options import json_option
from celery_throttle.cli.target import Target, find_target, pass_target
from celery_throttle.errors import RulesError
from celery_throttle.observe.text import count
from celery_throttle.rules.dump import dump_rules
from celery_throttle.rules.file import load_rules
from celery_throttle.store.keys import Keys


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
@click.pass_context
def check(ctx: click.Context, file: str, *, as_json: bool) -> None:
    """Check a rules file.

    Reports every mistake with its line, without the server. With an app, the limits of its code
    count.
    """
    has_app = "url" not in ctx.find_root().params
    code = find_target(ctx).throttle.limits if has_app else None
    try:
        rules = load_rules(file, code)
    except RulesError as error:
        if not as_json:
            raise
        mistakes = [{"line": line, "text": text} for line, text in error.mistakes]
        echo_json({"file": file, "mistakes": mistakes})
        ctx.exit(ExitCode.FAILED)
    sizes = {"limit": len(rules.limits), "weight": len(rules.weights), "route": len(rules.routes)}
    if as_json:
        echo_json({"file": file, "mistakes": []})
    else:
        found = ", ".join(count(size, noun) for noun, size in sizes.items())
        click.echo(f"{file}: no mistakes; {found}.")


@click.command()
@json_option
@pass_target
def dump(target: Target, *, as_json: bool) -> None:
    """Print what is in force, as a rules file.

    Limits and weights of names and keys, and the routes of the app.
    """
    limits, weights = target.throttle.run_plan(target.throttle.observer.definitions_in_force())
    written = target.throttle.settings.routes if target.has_app else {}
    routes = {task: [spec] if isinstance(spec, str) else [*spec] for task, spec in written.items()}
    text = dump_rules(limits, weights, routes)
    if not as_json:
        click.echo(text, nl=False)
        return
    echo_json(
        {
            "limits": {Keys.field(ref): [*map(str, some)] for ref, some in limits.items()},
            "weights": {Keys.field(ref): weight for ref, weight in weights.items()},
            "routes": routes,
        }
    )
