"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

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
napoleon_use_rtype = False

# The sites of other projects are not read, so that a build needs no network.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(celery|kombu|redis|httpx|requests|aiohttp|pytest|click|datetime|collections)\b.*",
    ),
    (r"py:.*", r"[A-Z]\w{0,3}|_\w+|.*\._\w+"),  # type variables and private types
]

# `make docs LINKS=all` checks links to other sites, too.
linkcheck_ignore = [r"https?://"]

#: The version that a name has been there since, unless its docstring has ``versionadded``.
FIRST = "0.1.0"


def add_version(
    _app: object, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Say since which version a class, function or exception is there."""
    if what in ("class", "function", "exception") and "versionadded" not in "".join(lines):
        lines += ["", f".. versionadded:: {FIRST}"]


def setup(app: Any) -> None:
    """Connect the functions of this file."""
    app.connect("autodoc-process-docstring", add_version)
