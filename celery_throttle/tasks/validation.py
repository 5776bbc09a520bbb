"""Finds all mistakes in the settings, the routes and the tasks of an app, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from celery import Task

from celery_throttle.errors import (
    ConfigurationError,
    RulesError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.requirement import parse_definitions, parse_limits
from celery_throttle.store.client import Store
from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.settings import Settings
from celery_throttle.tasks.task import ThrottledTask, is_limited_elsewhere
from celery_throttle.tasks.task_limits import read_templates

#: Replaces a limit that cannot be read, so that its tasks are checked for other mistakes.
_ANY = (Limit.parse("1000000/s burst 1000000"),)


def check(throttle: AppLimits, *, rules_file: bool = True) -> None:
    """Check an app; ``rules_file``: whether mistakes in its rules file count.

    Raises:
        ConfigurationError: there are mistakes; the message has a line for each.
    """
    found = list_mistakes(throttle, rules_file=rules_file)
    if not found:
        return
    if len(found) == 1:
        raise ConfigurationError(found[0])
    lines = "\n".join(f"- {text}" for text in found)
    raise ConfigurationError(f"{len(found)} mistakes in app {throttle.app.main!r}:\n{lines}")


def list_mistakes(throttle: AppLimits, *, rules_file: bool = True) -> list[str]:
    """Return a line for each mistake; ``rules_file``: see :func:`check`."""
    errors = _mistakes(throttle)
    if not rules_file:
        errors = (error for error in errors if not isinstance(error, RulesError))
    return list(dict.fromkeys(map(str, errors)))


def list_warnings(throttle: AppLimits) -> list[str]:
    """Return a line for each name of an attribute or a setting that is probably misspelt.

    Names that are certainly misspelt are mistakes.
    """
    found = [*throttle.settings.find_misspellings()]
    for _, task in sorted(throttle.app.tasks.items()):
        if isinstance(task, ThrottledTask):
            found += option_warnings.find_in_task(type(task), ThrottledTask)
    return [one.text for one in found if not one.certain]


def _mistakes(throttle: AppLimits) -> Iterator[ThrottleError]:
    """Yield all mistakes of an app; some may come twice."""
    settings, tasks = throttle.settings, sorted(throttle.app.tasks.items())
    yield from settings.mistakes()
    try:
        written, routes, enabled = settings.written_limits, settings.routes, settings.enabled
        _ = settings.rules
    except ConfigurationError:  # it was yielded; without limits nothing else can be checked
        return
    wrong = {name: _error(parse_definitions, {name: limit}) for name, limit in written.items()}
    known = {name: _ANY if wrong[name] else parse_limits(written[name], name) for name in written}
    yield from filter(None, wrong.values())
    if not any(wrong.values()):
        known.update(throttle.limits)
        yield from _in_rules_file(throttle)
    if enabled and (written or settings.has_server):
        yield from filter(None, [_error(_make_store, settings)])
    for pattern, spec in routes.items():
        yield from filter(
            None, [_error(read_templates, spec, known, f"throttle_routes[{pattern!r}]")]
        )
    for _, task in tasks:
        yield from _in_task(throttle, task, known)


def _in_rules_file(throttle: AppLimits) -> Iterator[RulesError]:
    error = None if throttle.rules_file is None else throttle.rules_file.error
    if error is not None:
        yield from (RulesError(error.source, [mistake]) for mistake in error.mistakes)


def _make_store(settings: Settings) -> Store:
    return Store(settings.url, timeout=settings.timeout, prefix=settings.prefix)


def _in_task(
    throttle: AppLimits, task: Task, known: Mapping[str, Limits]
) -> Iterator[ThrottleError]:
    error = throttle.declared.error_of(task, known)
    elsewhere = isinstance(error, UnknownLimitError) and (
        is_limited_elsewhere(throttle.app, task) or throttle.lacks_rules
    )
    if error is not None and not elsewhere:
        yield error
    if isinstance(task, ThrottledTask):
        for one in option_warnings.find_in_task(type(task), ThrottledTask):
            if one.certain:
                yield ConfigurationError(one.text)


def _error(read: Callable[..., object], *args: Any) -> ThrottleError | None:
    """Return the error of ours that a function raises, or None."""
    try:
        read(*args)
    except ThrottleError as error:
        return error
    return None
