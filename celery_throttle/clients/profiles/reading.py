"""Reads what an answer says about the limits of its API, by the profile of the vendor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles.fields import Fields
from celery_throttle.clients.profiles.header_values import parse_limit, parse_reset, parse_units
from celery_throttle.clients.profiles.profile import Meaning, Profile, Quota, Reset, Sign


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
        quota = self.quota(quantity) or Quota(quantity)
        return quota.reset_after if quota.remaining == 0 and quota.means is Reset.WINDOW else None


def read(profile: Profile, answer: ApiAnswer, now: float) -> Reading:
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
    sign = _find_sign(profile, answer)
    meaning = sign.meaning if sign else _plain_meaning(answer)
    tells_wait = meaning in (Meaning.REFUSAL, Meaning.OVERLOAD)
    if not tells_wait and not profile.tells_quotas(answer):
        return Reading(meaning)  # as most answers
    fields = Fields(answer, now)
    quotas = tuple(_find_quotas(profile, fields))
    wait = _find_wait(profile, fields) if tells_wait else None
    if wait is None and sign is not None and not any(each.remaining == 0 for each in quotas):
        wait = sign.wait
    if meaning is Meaning.OVERLOAD and wait is None and sign is not None and sign.header:
        meaning = Meaning.FAILURE  # the header that is the sign has no time
    refused: tuple[str, ...] = ()
    if meaning is Meaning.REFUSAL:
        spent = (each.quantity for each in quotas if each.remaining == 0)
        refused = tuple(sign.quantities if sign and sign.quantities else spent)
    return Reading(meaning, wait, quotas, refused, fields.warnings)


def _find_sign(profile: Profile, answer: ApiAnswer) -> Sign | None:
    """Return the first sign of an answer."""
    codes: list[str] | None = None
    for sign in profile.signs:
        if sign.codes and codes is None and answer.has_body:
            codes = [code for path in profile.codes for code in answer.find(path)]
        if sign.matches(answer, codes or ()):
            return sign
    return None


def _plain_meaning(answer: ApiAnswer) -> Meaning:
    failed = answer.status is None or answer.is_error
    return Meaning.FAILURE if failed else Meaning.ACCEPTED


def _find_quotas(profile: Profile, fields: Fields) -> Iterator[Quota]:
    """Yield the state of each quantity once: that with the least remaining."""
    least: dict[str, Quota] = {}
    for quota in _all_quotas(profile, fields):
        present = least.setdefault(quota.quantity, quota)
        if _left(quota) < _left(present):
            least[quota.quantity] = quota
    yield from least.values()


def _all_quotas(profile: Profile, fields: Fields) -> Iterator[Quota]:
    if profile.quotas is not None:
        yield from profile.quotas(fields)
    for each in profile.quantities:
        remaining = fields.value(each.remaining, parse_units)
        limit = fields.value(each.limit, parse_limit)
        if remaining is not None or limit is not None:
            reset = fields.delay(each.reset, parse_reset)
            yield Quota(each.name, remaining, limit, reset, each.means, each.period)


def _left(quota: Quota) -> float:
    return inf if quota.remaining is None else quota.remaining


def _find_wait(profile: Profile, fields: Fields) -> float | None:
    for wait in profile.waits:
        if wait.header:
            found = fields.delay(wait.header, wait.parse)
        else:
            texts = fields.answer.find(wait.path)
            found = fields.checked_delay(wait.path, texts[0], wait.parse) if texts else None
        if found is not None:
            return found
    return None
