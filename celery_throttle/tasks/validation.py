"""Finds all mistakes in the settings, the routes and the tasks of an app, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from celery import Task

from celery_throttle.errors import (
    ConfigurationError,
    RulesError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limits.key_template import KeyTemplate
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.requirement import parse_definitions
from celery_throttle.store.client import Store
from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task import ThrottledTask, is_limited_elsewhere
from celery_throttle.tasks.task_limits import named, read_entries

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
    errors = _find_mistakes(throttle)
    texts = (str(error) for error in errors if rules_file or not isinstance(error, RulesError))
    return list(dict.fromkeys(texts))


def list_warnings(throttle: AppLimits) -> list[str]:
    """Return a line for each name of an attribute or a setting that is probably misspelt.

    Names that are certainly misspelt are mistakes.
    """
    found = [*throttle.settings.find_misspellings()]
    for _, task in sorted(throttle.app.tasks.items()):
        if isinstance(task, ThrottledTask):
            found += option_warnings.find_in_task(type(task), ThrottledTask)
    return [one.text for one in found if not one.certain]


def _find_mistakes(throttle: AppLimits) -> list[ThrottleError]:
    """Return all mistakes of an app; some may come twice."""
    settings, found = throttle.settings, list(throttle.settings.mistakes())
    try:
        written, routes, enabled = settings.written_limits, settings.routes, settings.enabled
        shards, _ = settings.shards, settings.rules
    except ConfigurationError:  # it was found; without limits nothing else can be checked
        return found
    known: dict[str, Limits] = {}
    for name, limit in written.items():
        known[str(name)] = _ANY
        with _collected(found):
            known.update(parse_definitions({name: limit}))
    if _ANY not in known.values():
        known.update(throttle.limits)
        error = None if throttle.rules_file is None else throttle.rules_file.error
        if error is not None:
            found += (RulesError(error.source, [mistake]) for mistake in error.mistakes)
    if enabled and (written or settings.has_server):
        with _collected(found):
            Store(settings.url, timeout=settings.timeout, prefix=settings.prefix)
    for pattern, route in routes.items():
        with _collected(found):
            where = f"throttle_routes[{pattern!r}]"
            templates = read_entries(route.limits, known, where)
            with named(where):
                shards.check_templates(each for each in templates if isinstance(each, KeyTemplate))
    for _, task in sorted(throttle.app.tasks.items()):
        with _collected(found):
            _check_task(throttle, task, known)
        if isinstance(task, ThrottledTask):
            names = option_warnings.find_in_task(type(task), ThrottledTask)
            found += (ConfigurationError(name.text) for name in names if name.certain)
    return found


def _check_task(throttle: AppLimits, task: Task, known: Mapping[str, Limits]) -> None:
    try:
        throttle.declared.read(task, known)
    except UnknownLimitError:
        if not (is_limited_elsewhere(throttle.app, task) or throttle.lacks_rules):
            raise


@contextmanager
def _collected(found: list[ThrottleError]) -> Iterator[None]:
    try:
        yield
    except ThrottleError as error:
        found.append(error)
