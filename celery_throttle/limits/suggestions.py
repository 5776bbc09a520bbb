"""What was meant by text that is no limit, such as ``"10 per second"`` or ``"10 concurrent"``."""

from __future__ import annotations

import re
from collections.abc import Callable

#: Several limits in one text.
_SEVERAL = re.compile(r"\s*(?:[,;&+]|\band\b)\s*", re.IGNORECASE)

#: The comma of "1,000".
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

_WHAT = r"(?:req(?:uest)?s?|calls?|tasks?|jobs?|times|messages?|units?|tokens?|hits|ops?|r)"
_AT_ONCE = (
    r"(?:concurren(?:t|tly|cy)|parallel|in\s+parallel|simultaneous(?:ly)?|slots?|workers?|threads?"
    r"|connections?|at\s+(?:a|one|the\s+same)\s+time)"
)

#: What is written otherwise, in this order; all that is not a limit in the end is not suggested.
_REWRITTEN = tuple(
    (re.compile(pattern, re.IGNORECASE), written)
    for pattern, written in (
        (r"^(?:max(?:imum)?|at\s+most|up\s+to|limit)[\s:]+", ""),
        (r"\s*[=:]\s*", " "),  # burst=10
        (rf"^{_AT_ONCE}\s+(?:of\s+)?(\d+)$", r"\1 at once"),  # concurrency 10
        (rf"^(\d+)\s*{_AT_ONCE}(?:\s+{_WHAT})?$", r"\1 at once"),
        (r"^(\d+)\s*[rqtco]p([smhd])\b", r"\1/\2"),  # 10rps
        (rf"^(\d+)\s*{_WHAT}\b", r"\1"),  # 10 requests/s
        (r"\s+(?:(?:per|every|each|in)\s+)?(?:an?|each|every|per)\s+(?=\d|[a-z])", "/"),
        (r"\b(\d+)\s+burst$", r"burst \1"),
    )
)


def suggest(text: str, is_limit: Callable[[str], bool]) -> str | list[str] | None:
    """A limit that a text may mean, several of them, or None.

    Args:
        text: what was written.
        is_limit: whether another text is a limit.
    """
    limits = [_rewrite(part) for part in _SEVERAL.split(_THOUSANDS.sub("", text.strip()))]
    if not all(map(is_limit, limits)):
        return None
    return limits[0] if len(limits) == 1 else limits


def _rewrite(text: str) -> str:
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    return text
