"""Reads what an answer says about the limits of its API, by the profile of the vendor.

Epochs and dates are compared with the ``Date`` of the answer, so the clock of this machine may be
wrong. What is malformed is ignored, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from celery_throttle.clients import header_values
from celery_throttle.clients.answer import Answer
from celery_throttle.clients.profile import Meaning, Profile, Quantity, Quota, Reset, Sign
from celery_throttle.errors import shown

#: Longer delays count as this many seconds: an API must not stop its callers for a day, or by
#: mistake for a year. After an hour they call again.
MAX_DELAY_SECONDS = 3600.0

#: A time that is past by more than this gets a warning: clocks differ, and responses take time.
CLOCK_SKEW_SECONDS = 60.0

#: Longer headers are ignored. The examples of the vendors have less than a hundred characters.
MAX_HEADER_CHARACTERS = 1000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says about the limits of its API.

    Attributes:
        meaning: Whether the API refused the request, is overloaded, or neither.
        wait: Seconds until the API takes requests again, 0 to 3600; None if it does not say.
        quotas: The state of each quantity that the answer tells.
        refused: The quantities that refused the request; empty if that is unknown.
        warnings: A message for each part that was ignored, or cut to its range.
    """

    meaning: Meaning
    wait: float | None = None
    quotas: tuple[Quota, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def quota(self, quantity: str) -> Quota | None:
        """Return the state of a quantity; None if the answer does not tell it.

        Args:
            quantity: The name of the quantity.
        """
        return next((each for each in self.quotas if each.quantity == quantity), None)

    def stop(self, quantity: str) -> float | None:
        """Return the seconds for which the API lets nobody take of a quantity; None if unknown.

        Args:
            quantity: The name of the quantity.
        """
        if self.meaning is Meaning.OVERLOAD:
            return self.wait
        if self.meaning is Meaning.REFUSAL and self.wait is not None:
            return self.wait if not self.refused or quantity in self.refused else None
        quota = self.quota(quantity)
        is_spent = quota is not None and quota.remaining == 0 and quota.means is Reset.WINDOW
        return quota.reset_after if quota is not None and is_spent else None


def read(profile: Profile, answer: Answer, now: float) -> Reading:
    """Read an answer. Malformed parts never raise an error.

    Args:
        profile: What the vendor documents.
        answer: The answer.
        now: The time of this machine in seconds since 1970, for an answer without ``Date``.

    Example:
        ::

            reading = read(OPENAI, of_response(response), time.time())
            reading.quota("tokens").remaining
    """
    return _Reader(profile, answer, now).read()


class _Reader:
    """Reads one answer and collects warnings."""

    def __init__(self, profile: Profile, answer: Answer, now: float) -> None:
        self._profile = profile
        self._answer = answer
        self._warnings: dict[str, str] = {}  # by what they are about, the first of each
        self._now = now

    def read(self) -> Reading:
        sign = self._sign()
        meaning = sign.meaning if sign else self._plain_meaning()
        tells_wait = meaning in (Meaning.REFUSAL, Meaning.OVERLOAD)
        if not tells_wait and self._profile.quotas is None and not self._has_quotas():
            return Reading(meaning)  # as most answers
        self._sent = self._date(self._now)
        quotas = tuple(self._quotas())
        wait = self._wait() if tells_wait else None
        refused: tuple[str, ...] = ()
        if meaning is Meaning.REFUSAL:
            spent = (each.quantity for each in quotas if each.remaining == 0)
            refused = tuple(sign.quantities if sign and sign.quantities else spent)
        return Reading(meaning, wait, quotas, refused, tuple(self._warnings.values()))

    def _plain_meaning(self) -> Meaning:
        status = self._answer.status
        failed = status is None or status >= HTTPStatus.BAD_REQUEST
        return Meaning.FAILURE if failed else Meaning.ACCEPTED

    def _sign(self) -> Sign | None:
        """Return the first sign of the answer."""
        codes: list[str] | None = None
        for sign in self._profile.signs:
            if sign.codes and codes is None and self._answer.has_body:
                codes = [code for path in self._profile.codes for code in self._answer.find(path)]
            if sign.matches(self._answer, codes or ()):
                return sign
        return None

    # Quotas.

    def _has_quotas(self) -> bool:
        headers = self._answer.headers
        return any(
            each.remaining in headers or each.limit in headers for each in self._profile.quantities
        )

    def _quotas(self) -> Iterator[Quota]:
        """Yield the state of each quantity once: that with the least remaining."""
        least: dict[str, Quota] = {}
        for quota in self._all_quotas():
            present = least.setdefault(quota.quantity, quota)
            if _left(quota) < _left(present):
                least[quota.quantity] = quota
        yield from least.values()

    def _all_quotas(self) -> Iterator[Quota]:
        for quantity in self._profile.quantities:
            quota = self._in_headers(quantity)
            if quota is not None:
                yield quota
        if self._profile.quotas is not None:
            try:
                yield from self._profile.quotas(self._answer)
            except ValueError as error:
                self._warnings.setdefault("quotas", str(error))

    def _in_headers(self, quantity: Quantity) -> Quota | None:
        remaining = self._value(quantity.remaining, header_values.parse_units)
        limit = self._value(quantity.limit, header_values.parse_units)
        if remaining is None and limit is None:
            return None
        reset = self._delay(quantity.reset, header_values.parse_reset)
        return Quota(quantity.name, remaining, limit, reset, quantity.means)

    # Times.

    def _wait(self) -> float | None:
        for wait in self._profile.waits:
            if wait.header:
                found = self._delay(wait.header, wait.parse)
            else:
                texts = self._answer.find(wait.path)
                found = self._checked(wait.path, texts[0], wait.parse) if texts else None
            if found is not None:
                return found
        return None

    def _date(self, now: float) -> float:
        """Return when the response was sent, by its sender's clock; ``now`` if that is unset."""
        sent = self._value("date", header_values.parse_date)
        if sent is not None and sent < header_values.MIN_EPOCH_SECONDS:
            self._warn("date", self._answer.headers["date"], "is no time of today")
            return now
        return now if sent is None else sent

    def _delay(self, name: str, parse: Callable[[str, float], float]) -> float | None:
        text = self._text(name)
        return None if text is None else self._checked(name, text, parse)

    def _checked(self, name: str, text: str, parse: Callable[[str, float], float]) -> float | None:
        """Return a delay within its range."""
        delay = self._parsed(name, text, lambda one: parse(one, self._sent))
        if delay is None:
            return None
        if delay > MAX_DELAY_SECONDS:
            effect = f"taken as {MAX_DELAY_SECONDS:.0f} s"
            self._warn(name, text, f"is {delay:.0f} s ahead", effect)
        elif delay < -CLOCK_SKEW_SECONDS:
            self._warn(name, text, f"is {-delay:.0f} s ago", "taken as 0 s")
        return min(max(delay, 0.0), MAX_DELAY_SECONDS)

    # Texts.

    def _value(self, name: str, parse: Callable[[str], _T]) -> _T | None:
        text = self._text(name)
        return None if text is None else self._parsed(name, text, parse)

    def _text(self, name: str) -> str | None:
        text = self._answer.headers.get(name)
        if text is not None and len(text) > MAX_HEADER_CHARACTERS:
            self._warn(name, text, f"has more than {MAX_HEADER_CHARACTERS} characters")
            return None
        return None if text is None else text.strip(" \t")

    def _parsed(self, name: str, text: str, parse: Callable[[str], _T]) -> _T | None:
        try:
            return parse(text)
        except ValueError as error:
            self._warn(name, text, str(error))
            return None

    def _warn(self, name: str, text: str, reason: str, effect: str = "ignored") -> None:
        message = f"{name}: {shown(text[:MAX_HEADER_CHARACTERS])} {reason}, {effect}"
        self._warnings.setdefault(name, message)


def _left(quota: Quota) -> float:
    return float("inf") if quota.remaining is None else quota.remaining
