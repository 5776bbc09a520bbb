"""A rules file on disk: read once, or watched for changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from celery_throttle.errors import RulesError, shown
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules

__all__ = ["load_rules"]

#: The content of a file; text is the reason why it cannot be read.
_Content = bytes | str


def load_rules(path: str, code: Mapping[str, Limits] | None = None) -> Rules:
    """Read a rules file.

    Args:
        path: The path of the file.
        code: The limits of the code, by name, to which the file may refer. None (the default): the
            limits of the code are unknown, and the file may refer to any name.

    Raises:
        RulesError: The file cannot be read, or has mistakes.
    """
    content, _ = _read(path)
    return _parse(content, path, code)


class RulesFile:
    """Watches a rules file. Does not start a thread and does not sleep: call :meth:`poll`.

    It compares content, so it notices a replaced file or symlink. The first poll reads what there
    is. Later, new content counts when two polls in a row have found it: a poll may come while an
    editor is writing the file. A missing, unreadable or wrong file, an empty one included, leaves
    the rules as they are.

    ``code``: as for :func:`read_rules`. ``check`` raises RulesError for rules, of the path, that
    this process cannot use.
    """

    def __init__(
        self,
        path: str,
        code: Mapping[str, Limits] | None = None,
        check: Callable[[Rules, str], None] | None = None,
    ) -> None:
        self.path = path
        self.rules: Rules | None = None  #: in force; None if the file has had none without mistakes
        #: The time of the last change of the file with these rules, in seconds since 1970.
        self.modified = 0.0
        #: Why the present content is not in force; None if it is.
        self.error: RulesError | None = None
        self._code = code
        self._check = check
        self._last_found: _Content | None = None
        self._last_parsed: _Content | None = None

    def poll(self) -> Rules | None:
        """Return the rules if they have changed since the last poll, else None.

        Raises:
            RulesError: as :func:`load_rules`, once for each content.
        """
        content, modified = _read(self.path)
        settled = self._last_found in (None, content)
        self._last_found = content
        if not settled or content == self._last_parsed:
            return None
        self._last_parsed = content
        try:
            rules = _parse(content, self.path, self._code)
            if self._check is not None:
                self._check(rules, self.path)
        except RulesError as error:
            self.error = error
            raise
        self.error, self.modified = None, modified
        if rules == self.rules:
            return None
        self.rules = rules
        return rules


def _read(path: str) -> tuple[_Content, float]:
    """Return the content of a file, and when it was modified."""
    try:
        with Path(path).open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return error.strerror or type(error).__name__, 0.0
    except ValueError as error:  # no file can have this path, such as one with a NUL byte
        return str(error), 0.0


def _parse(content: _Content, path: str, code: Mapping[str, Limits] | None) -> Rules:
    if isinstance(content, str):
        raise RulesError(path, [(None, f"the file cannot be read: {content}")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = shown(content[error.start : error.end])
        mistake = f"{wrong} is not UTF-8; allowed: text in UTF-8"
        raise RulesError(path, [(line, mistake)]) from None
    return read_rules(text, path, code)
