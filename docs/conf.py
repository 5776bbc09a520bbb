"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

project = "celery_throttle"
author = "The celery_throttle authors"
copyright = author  # noqa: A001  # the name that Sphinx reads
release = version = version_of("celery-global-throttle")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"celery_throttle {version}"

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

# Only text after a prompt is copied.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Names that signatures show in place of unions; docs/reference/api/values.md explains them.
autodoc_type_aliases = {
    "CallCost": "celery_throttle.clients.calls.guard.CallCost",
    "CallFunction": "celery_throttle.limits.requirement.CallFunction",
    "Cost": "celery_throttle.limits.cost.Cost",
    "CostSpec": "celery_throttle.tasks.task_limits.CostSpec",
    "Costs": "celery_throttle.limits.requirement.Costs",
    "Duration": "celery_throttle.limits.duration.Duration",
    "GuardedLimits": "celery_throttle.clients.calls.guard.GuardedLimits",
    "FanOut": "celery_throttle.bulk.fan_out.handle.FanOut",  # app.py imports it late
    "KeyFunction": "celery_throttle.inbound.rules.KeyFunction",
    "KeySpec": "celery_throttle.inbound.rules.KeySpec",
    "LimitHandles": "celery_throttle.limiter.arguments.LimitHandles",
    "LimitsLike": "celery_throttle.limits.requirement.LimitsLike",
    "RefLike": "celery_throttle.limits.key.RefLike",
    "ReadAnswer": "celery_throttle.clients.wrapped.ReadAnswer",
    "ReportProgress": "celery_throttle.bulk.removal.remove.ReportProgress",
    "RequestLimits": "celery_throttle.inbound.rules.RequestLimits",
    "RequestCost": "celery_throttle.inbound.rules.RequestCost",
    "Spec": "celery_throttle.tasks.settings.Spec",
    "Units": "celery_throttle.clients.profiles.profile.Units",
    "Usage": "celery_throttle.clients.calls.guard.Usage",
}
napoleon_use_rtype = False

# The sites of other projects are not read, so that a build needs no network.
nitpick_ignore_regex = [
    (r"py:class", r"date"),
    (
        r"py:.*",
        r"(aiohttp|celery|click|collections|datetime|enum|grpc|httpx|httpx2|kombu|opentelemetry|pytest|redis|requests)\b.*",
    ),
    (r"py:.*", r"Decimal|Fraction|os\.PathLike|Signature"),  # of Python and Celery
    (r"py:.*", r"(.*\.)?[A-Z]\w{0,3}|_\w+|.*\._\w+"),  # type variables and private types
    # What Limiter and Throttle share, and handles, for annotations; their pages show the methods.
    (
        r"py:class",
        r"celery_throttle\.(limiter\.core\.LimiterCore|limits\.key\.HasRef|observe\.metrics\.table\.Observed)",
    ),
]

# `make docs LINKS=all` checks links to other sites, too.
linkcheck_ignore = [r"https?://"]

#: The version that a name has been there since, unless its docstring has ``versionadded``.
FIRST = "0.1.0"


#: How Sphinx writes a name of ``autodoc_type_aliases``, alone and as part of another type.
_ALIAS = re.compile(
    r"TypeAliasForwardRef\('([\w.]+)'\)|(?<![\w.~])(?:("
    + "|".join(map(re.escape, autodoc_type_aliases.values()))
    + ")|("
    + "|".join(autodoc_type_aliases)
    + r"))(?![\w.])"
)


_QUALIFIED = re.compile(r"(?<![\w.~])[a-z]\w*\.[\w.]+")


def shorten_aliases(text: str | None) -> str | None:
    """Show the last part of the names of ``autodoc_type_aliases``, as of other types."""

    def short(found: re.Match[str]) -> str:
        return f"~{found[1] or found[2] or autodoc_type_aliases[found[3]]}"

    return text and _ALIAS.sub(short, text)


def shorten_types(line: str) -> str:
    """Show the last part of the names of types, as in signatures."""
    return _QUALIFIED.sub(r"~\g<0>", shorten_aliases(line) or "")


def shorten_signature(
    _app: object,
    _what: str,
    _name: str,
    _object: object,
    _options: object,
    arguments: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Shorten the names of types in a signature."""
    return shorten_aliases(arguments), shorten_aliases(returned)


def add_version(
    _app: object, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Say since which version a class, function or exception is there."""
    if what in ("class", "function", "exception") and "versionadded" not in "".join(lines):
        lines += ["", f".. versionadded:: {FIRST}"]
    lines[:] = [shorten_types(line) if ":type:" in line else line for line in lines]


def setup(app: Any) -> None:
    """Connect the functions of this file."""
    app.connect("autodoc-process-docstring", add_version)
    app.connect("autodoc-process-signature", shorten_signature)
