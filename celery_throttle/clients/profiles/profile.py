"""Profiles: what the vendors of APIs document about their limits, as data.

A :class:`Profile` says which headers carry the state of which quantity, which answers are refusals,
overloads or neither, what a refused request costs, and how estimates and usage are read. The
profiles of vendors are in :mod:`celery_throttle.clients.profiles`; a user can write another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from celery_throttle.clients.profiles.header_values import parse_retry_after

if TYPE_CHECKING:
    from celery_throttle.clients.answer import ApiAnswer
    from celery_throttle.clients.profiles.fields import Fields

#: The quantity of which each request costs one unit.
REQUESTS = "requests"

#: Units by the name of the quantity, such as ``{"tokens": 250}``.
Units = Mapping[str, float]


class Meaning(Enum):
    """What an answer says about the limits of its API."""

    ACCEPTED = "accepted"  #: The API took the request, whatever came of it.
    REFUSAL = "refusal"  #: A limit of the API refused the request.
    OVERLOAD = "overload"  #: The API has too little capacity now; its limits are unchanged.
    FAILURE = "failure"  #: The request failed for a reason that says nothing about rates.


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign by which an answer is known. What is not given matches any answer.

    Attributes:
        meaning: What such an answer means.
        statuses: The status is one of these.
        codes: One of the codes in the body is one of these.
        text: The text of the body contains this, in any case of its letters.
        header: The answer has this header. Lower case.
        quantities: The quantities that refused the request. Empty: those of which nothing is left,
            or, if the answer does not say, all.
        wait: Seconds until the API takes requests again, if the answer does not say.
    """

    meaning: Meaning
    statuses: Sequence[int] = ()
    codes: Sequence[str] = ()
    text: str = ""
    header: str = ""
    quantities: Sequence[str] = ()
    wait: float | None = None

    def matches(self, answer: ApiAnswer, codes: Sequence[str]) -> bool:
        """Return whether an answer has this sign.

        Args:
            answer: The answer.
            codes: The codes in its body.
        """
        return (
            (not self.statuses or answer.status in self.statuses)
            and (not self.codes or not set(self.codes).isdisjoint(codes))
            and (not self.header or self.header in answer.headers)
            and (not self.text or self.text.lower() in answer.text.lower())
        )


class Reset(Enum):
    """What the time in a reset header means."""

    WINDOW = "window"  #: All units are available then, and none before.
    FULL = "full"  #: All units are available then. They come back one by one.


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that an API limits, and the headers that carry its state. All in lower case.

    Attributes:
        name: Such as ``"requests"`` or ``"tokens"``. Of several quotas in one quantity, that with
            the least remaining counts.
        remaining: The header with the whole units that are left.
        limit: The header with the units of the whole quota.
        reset: The header with the time of the reset, in any form: seconds, an epoch in seconds or
            milliseconds, a duration such as ``6m0s``, an HTTP date, RFC 3339.
        means: What the time of the reset means; default :attr:`Reset.WINDOW`.
        period: Seconds in which the API allows ``limit``: adaptive limits take their rate from it.
            None (the default): it is not documented.
    """

    name: str
    remaining: str
    limit: str = ""
    reset: str = ""
    means: Reset = Reset.WINDOW
    period: float | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The state of one quantity, as an answer tells it.

    Attributes:
        quantity: The name of the quantity.
        remaining: Whole units that are left; None if unknown.
        limit: Units of the whole quota; None if unknown.
        reset_after: Seconds from the answer to the reset; None if unknown.
        means: What the time of the reset means.
        period: Seconds in which the API allows ``limit``; None if unknown.
    """

    quantity: str
    remaining: int | None = None
    limit: int | None = None
    reset_after: float | None = None
    means: Reset = Reset.WINDOW
    period: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Where an answer has the time until the next request.

    Attributes:
        header: The name of a header, in lower case.
        path: Or a path in the body, such as ``error.retry_after``; see :attr:`Profile.codes`.
        parse: Returns the seconds from the text and the time of the answer (seconds since 1970).
            Raises ``ValueError`` with a message such as "is no number". Default: seconds or a date.
    """

    header: str = ""
    path: str = ""
    parse: Callable[[str, float], float] = parse_retry_after


def no_units(_: Any) -> Units:
    """Return no units: the API has no quantity but requests."""
    return {}


@dataclass(frozen=True, slots=True)
class Profile:
    """What one vendor documents about the limits of its API.

    Attributes:
        name: The vendor, as in messages.
        quantities: The quantities, and their headers.
        signs: The signs of answers; the first that matches counts. An answer without one is
            accepted with a status below 400, and a failure otherwise.
        codes: Where the body has its codes: paths such as ``error.code``; ``*`` stands for each
            item of a list.
        waits: Where an answer has the time until the next request; the first that is there counts.
        quotas: Returns quotas that are not in headers of their own. It raises nothing.
        quota_headers: The headers that ``quotas`` reads, in lower case.
        refused_costs: The quantities of which a refused request costs its units all the same.
        estimate: Returns what a request may cost, beside one request, from the JSON of its body.
        usage: Returns what a request has cost, beside one request, from the JSON of an answer, or
            of one event of a stream. Of several events, the last that tells a quantity counts.
    """

    name: str
    quantities: Sequence[Quantity] = ()
    signs: Sequence[Sign] = ()
    codes: Sequence[str] = ()
    waits: Sequence[Wait] = ()
    quotas: Callable[[Fields], Iterable[Quota]] | None = None
    quota_headers: Sequence[str] = ()
    refused_costs: Sequence[str] = ()
    estimate: Callable[[Mapping[str, Any]], Units] = no_units
    usage: Callable[[Mapping[str, Any]], Units] = no_units
    #: The headers that carry the state of a quantity: every answer is searched for them.
    _state_headers: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = (name for each in self.quantities for name in (each.remaining, each.limit))
        object.__setattr__(self, "_state_headers", frozenset((*self.quota_headers, *names)))

    def tells_quotas(self, answer: ApiAnswer) -> bool:
        """Return whether an answer may tell the state of a quantity.

        Args:
            answer: The answer.
        """
        if self.quotas is not None and answer.has_body:
            return True
        return not self._state_headers.isdisjoint(answer.headers)

    def reads_body(self, answer: ApiAnswer) -> bool:
        """Return whether an answer may say something in its body, which is not known yet.

        Args:
            answer: The answer.
        """
        return not answer.has_body and any(
            sign.codes and answer.status in sign.statuses for sign in self.signs
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of the quantities, each once."""
        return tuple(dict.fromkeys((REQUESTS, *(each.name for each in self.quantities))))
