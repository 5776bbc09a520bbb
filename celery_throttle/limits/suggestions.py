"""Suggestions for text that is not a limit, such as ``"10 per second"`` or ``"10 concurrent"``."""

from __future__ import annotations

import re
from collections.abc import Callable

#: Separates several limits in one text.
_SEPARATOR = re.compile(r"\s*(?:[,;&+]|\band\b)\s*", re.IGNORECASE)

#: The comma of "1,000".
_THOUSANDS_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

_UNIT = r"(?:req(?:uest)?s?|calls?|tasks?|jobs?|times|messages?|units?|tokens?|hits|ops?|r)"
_CONCURRENCY = (
    r"(?:concurren(?:t|tly|cy)|parallel|in\s+parallel|simultaneous(?:ly)?|slots?|workers?|threads?"
    r"|connections?|at\s+(?:a|one|the\s+same)\s+time)"
)

#: Rewrites of common spellings, in this order. A result that is not a limit is not suggested.
_REWRITES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"^(?:max(?:imum)?|at\s+most|up\s+to|limit)[\s:]+", ""),
        (r"\s*[=:]\s*", " "),  # burst=10
        (rf"^{_CONCURRENCY}\s+(?:of\s+)?(\d+)$", r"\1 at once"),  # concurrency 10
        (rf"^(\d+)\s*{_CONCURRENCY}(?:\s+{_UNIT})?$", r"\1 at once"),
        (r"^(\d+)\s*[rqtco]p([smhd])\b", r"\1/\2"),  # 10rps
        (rf"^(\d+)\s*{_UNIT}\b", r"\1"),  # 10 requests/s
        (r"\s+(?:(?:per|every|each|in)\s+)?(?:an?|each|every|per)\s+(?=\d|[a-z])", "/"),
        (r"\b(\d+)\s+burst$", r"burst \1"),
        (r"^0*(\d*)\.(\d)\s*/\s*(?=[a-z])", r"\1\2/10"),  # 4.9/s
    )
)


def suggest(text: str, is_limit: Callable[[str], bool]) -> str | list[str] | None:
    """Return the limit that a text may mean, a list of several, or None."""
    limits = [_rewrite(part) for part in _SEPARATOR.split(_THOUSANDS_COMMA.sub("", text.strip()))]
    if not all(map(is_limit, limits)):
        return None
    return limits[0] if len(limits) == 1 else limits


def _rewrite(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text
