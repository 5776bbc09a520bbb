"""Puts the rules of a file in force on the server of a limiter."""

from __future__ import annotations

from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.rules.rules import Rules
from celery_throttle.operations.rules import FileRules, author_of_file


def apply_rules(
    limiter: LimiterCore,
    rules: Rules,
    source: str,
    *,
    modified: float | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Put the rules of a file in force, all at once, in place of the rules in force.

    Definitions and weights that were set at run time stay in force; when they end, the rules
    apply. Units in use stay in use, as after a definition at run time.

    Args:
        limiter: The limiter, or the ``Throttle``.
        rules: The rules, see :func:`~celery_throttle.limits.rules.file.load_rules`.
        source: The path of the file, recorded with the change.
        modified: When the file was modified, in seconds since 1970. If the rules in force were
            modified later, the call changes nothing. None (the default): now, so that the call
            always replaces the rules in force.
        by: The author, up to 500 characters. Default: the user and host of this process.
        reason: The reason, up to 500 characters. Default: the name of the file.

    Returns:
        Whether the rules are in force.

    Raises:
        RulesError: A limit would switch between a rate and slots. The call changed nothing.
        StoreUnavailableError: The server cannot be reached.
    """
    file = FileRules(rules, source, to_us(modified or 0))
    author = author_of_file(source, by, reason)
    plan = limiter.plans.apply_rules(file, author, is_new=modified is None)
    return limiter.run_plan(plan).accepted
