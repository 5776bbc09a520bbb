"""The fields of one answer, parsed; what is malformed is ignored with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles import header_values
from celery_throttle.errors import shown

#: Longer delays count as this many seconds: an API must not stop its callers for a day, or by
#: mistake for a year. After an hour they call again.
MAX_DELAY_SECONDS = 3600.0

#: A time that is past by more than this gets a warning: clocks differ, and responses take time.
CLOCK_SKEW_SECONDS = 60.0

#: Longer headers are ignored. The examples of the vendors have less than a hundred characters.
MAX_HEADER_CHARACTERS = 1000

T = TypeVar("T")


class Fields:
    """Parses the fields of one answer.

    Epochs and dates are compared with the ``Date`` of the answer, so the clock of this machine may
    be wrong.

    Args:
        answer: The answer.
        now: The time of this machine in seconds since 1970, for an answer without ``Date``.

    Attributes:
        answer: The answer.
    """

    def __init__(self, answer: ApiAnswer, now: float) -> None:
        self.answer = answer
        self._warnings: dict[str, str] = {}  # by what they are about, the first of each
        self._sent = self._date(now)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A message for each part that was ignored, or cut to its range."""
        return tuple(self._warnings.values())

    def value(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return the value of a header; None if it is absent or malformed.

        Args:
            name: The name of the header, in lower case.
            parse: Raises ``ValueError`` with a message such as "is no number".
        """
        text = self._text(name)
        return None if text is None else self._parsed(name, text, parse)

    def delay(self, name: str, parse: Callable[[str, float], float]) -> float | None:
        """Return the seconds from the answer to the time in a header, 0 to 3600; None as above.

        Args:
            name: The name of the header, in lower case.
            parse: See :attr:`.profile.Wait.parse`.
        """
        text = self._text(name)
        return None if text is None else self.checked_delay(name, text, parse)

    def checked_delay(
        self, name: str, text: str, parse: Callable[[str, float], float]
    ) -> float | None:
        """Return the seconds that a text stands for, as :meth:`delay`.

        Args:
            name: What the text is, for warnings.
            text: The text.
            parse: See :attr:`.profile.Wait.parse`.
        """
        delay = self._parsed(name, text, lambda one: parse(one, self._sent))
        if delay is None:
            return None
        if delay > MAX_DELAY_SECONDS:
            effect = f"taken as {MAX_DELAY_SECONDS:.0f} s"
            self.warn(name, text, f"is {delay:.0f} s ahead", effect)
        elif delay < -CLOCK_SKEW_SECONDS:
            self.warn(name, text, f"is {-delay:.0f} s ago", "taken as 0 s")
        return min(max(delay, 0.0), MAX_DELAY_SECONDS)

    def warn(self, name: str, text: str, reason: str, effect: str = "ignored") -> None:
        """Warn of a part of the answer, unless there is a warning of it.

        Args:
            name: What the text is.
            text: The text at fault.
            reason: What is wrong with it.
            effect: What becomes of it.
        """
        message = f"{name}: {shown(text[:MAX_HEADER_CHARACTERS])} {reason}, {effect}"
        self._warnings.setdefault(name, message)

    def _date(self, now: float) -> float:
        """Return when the answer was sent, by its sender's clock; ``now`` if that is unset."""
        sent = self.value("date", header_values.parse_date)
        if sent is not None and sent < header_values.MIN_EPOCH_SECONDS:
            self.warn("date", self.answer.headers["date"], "is no time of today")
            return now
        return now if sent is None else sent

    def _text(self, name: str) -> str | None:
        text = self.answer.headers.get(name)
        if text is not None and len(text) > MAX_HEADER_CHARACTERS:
            self.warn(name, text, f"has more than {MAX_HEADER_CHARACTERS} characters")
            return None
        return None if text is None else text.strip(" \t")

    def _parsed(self, name: str, text: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(text)
        except ValueError as error:
            self.warn(name, text, str(error))
            return None
