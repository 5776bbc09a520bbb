"""``check``, ``diff``, ``apply`` and ``dump``: rules files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from celery_throttle.cli.shared.console import confirm, echo_json, echo_result
from celery_throttle.cli.shared.exit_codes import ExitCode
from celery_throttle.cli.shared.options import author_options, command, yes_option
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import preview_text
from celery_throttle.errors import RulesError
from celery_throttle.limiter.limiter import apply_rules
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import format_limits
from celery_throttle.limits.rules.file import load_rules
from celery_throttle.limits.rules.rules import Route, RuleChange, Rules, diff_rules, dump_rules
from celery_throttle.observe.status.definitions import (
    definitions_in_force,
    limits_below_rules,
    preview_definition,
)
from celery_throttle.observe.status.fleet import read_rules_in_force
from celery_throttle.observe.status_text import to_json
from celery_throttle.observe.text import count
from celery_throttle.observe.values import Preview
from celery_throttle.store.keys import Keys
from celery_throttle.tasks.functions import text_of, texts_of

file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False))


@command(file_argument)
def check(target: Target, file: str, *, as_json: bool) -> None:
    """Check a rules file.

    Reports every mistake with its line. This needs no server. With an app, the file may refer to
    limits that only the code defines, and routes are checked against the tasks.
    """
    try:
        rules = _load(target, file)
    except RulesError as error:
        if not as_json:
            raise
        mistakes = [{"line": line, "text": text} for line, text in error.mistakes]
        echo_json({"file": file, "mistakes": mistakes})
        click.get_current_context().exit(ExitCode.FAILED)
    sizes = {"limit": len(rules.limits), "weight": len(rules.weights), "route": len(rules.routes)}
    sizes_text = ", ".join(count(size, noun) for noun, size in sizes.items())
    result = {"file": file, "mistakes": []}
    echo_result(result, f"{file}: no mistakes; {sizes_text}.", as_json=as_json)


@command(file_argument)
def diff(target: Target, file: str, *, as_json: bool) -> None:
    """Show what a rules file would change.

    Compares the file with the rules in force, and shows the effect on waiting tasks. Changes
    nothing.
    """
    result = _compare(target, file, _load(target, file))
    if as_json:
        echo_json(result)
    else:
        _show_changes(result)


@command(file_argument, author_options, yes_option)
def apply(target: Target, file: str, *, yes: bool, as_json: bool, **author: Any) -> None:
    """Put a rules file in force now.

    The rules stay in force until the rules file of a worker changes (throttle_rules), or another
    file is applied.
    """
    rules = _load(target, file)
    result = _compare(target, file, rules)
    if not as_json:
        _show_changes(result)
    confirm("Put these rules in force?", yes=yes or not result["changes"])
    apply_rules(target.throttle, rules, file, **author)
    echo_result(result, f"{file} is in force.", as_json=as_json)


def _load(target: Target, file: str) -> Rules:
    """Return the rules of a file; RulesError if it has mistakes, or tasks of the app would fail."""
    rules = load_rules(file, target.throttle.code_limits if target.has_app else None)
    if target.has_app:
        app = target.throttle.app
        app.loader.import_default_modules()
        app.finalize()
        target.throttle.check_rules(rules, file)
    return rules


def _compare(target: Target, file: str, rules: Rules) -> dict[str, Any]:
    """Return the changes to the rules in force, and a preview for each limit whose tasks wait."""
    changes = diff_rules(target.read(read_rules_in_force), rules)
    previews = {}
    for change in changes:
        if change.what == "limit" and isinstance(change.subject, LimitRef):
            preview = _preview(target, change.subject, rules)
            if preview is not None and preview.waiting:
                previews[Keys.field(change.subject)] = preview
    fields = [
        {**to_json(change), "subject": _subject(change), "text": str(change)} for change in changes
    ]
    return {"file": file, "changes": fields, "previews": previews}


def _preview(target: Target, ref: LimitRef, rules: Rules) -> Preview | None:
    """Return the preview of a definition of the file; None if one of run time stays in force."""
    below = target.read(lambda observer: limits_below_rules(observer, ref), ref)
    if below is None:
        return None
    new = rules.limits.get(ref, below)
    return target.read(lambda observer: preview_definition(observer, ref, new), ref)


def _subject(change: RuleChange) -> str:
    return change.subject if isinstance(change.subject, str) else Keys.field(change.subject)


def _show_changes(result: Mapping[str, Any]) -> None:
    if not result["changes"]:
        click.echo(f"{result['file']} changes nothing: these rules are in force.")
    for change in result["changes"]:
        click.echo(change["text"])
        if change["what"] == "limit" and change["subject"] in result["previews"]:
            click.echo(f"  {preview_text(result['previews'][change['subject']])}")


@command()
def dump(target: Target, *, as_json: bool) -> None:
    """Print the rules in force, as a rules file.

    The output has all limits and weights of names and keys, and the routes of the app.
    """
    throttle = target.throttle
    limits, weights = target.read(definitions_in_force)
    # Those of the rules file go before those of the code.
    of_file = target.read(read_rules_in_force).routes
    of_code = throttle.settings.routes if target.has_app else {}
    both = {**of_file, **of_code, **of_file}
    routes = {task: Route(texts_of(each.limits), text_of(each.cost)) for task, each in both.items()}
    if not as_json:
        click.echo(dump_rules(limits, weights, routes), nl=False)
        return
    echo_json(
        {
            "limits": {Keys.field(ref): format_limits(some) for ref, some in limits.items()},
            "weights": {Keys.field(ref): weight for ref, weight in weights.items()},
            "routes": {task: asdict(route) for task, route in routes.items()},
        }
    )
