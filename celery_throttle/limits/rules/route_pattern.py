"""Patterns of routes, of tasks and of incoming requests: ``*`` stands for any text.

All other characters stand for themselves, as names of tasks and paths may contain ``?`` and ``[``.
"""

from __future__ import annotations

import re
from fnmatch import translate

#: The wildcards of ``fnmatch``, without ``*``.
_LITERALS = re.compile(r"[?\[]")


def is_pattern(route: str) -> bool:
    """Whether a route is a pattern."""
    return "*" in route


def compile_route(route: str) -> re.Pattern[str]:
    """Return an expression whose ``match`` accepts a whole text. Upper and lower case differ."""
    # translate() matches without backtracking, so a client cannot make a match slow by its path.
    return re.compile(translate(_LITERALS.sub(r"[\g<0>]", route)))
