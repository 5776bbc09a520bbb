"""The profile of any HTTP API: the headers that many vendors share, and those of the IETF.

The drafts 06 to 11 of draft-ietf-httpapi-ratelimit-headers differ in their syntax: three headers,
one dictionary, a list of named quotas whose policies name the unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from http import HTTPStatus
from typing import Any

from celery_throttle.clients.answer import Answer
from celery_throttle.clients.header_values import (
    parse_dictionary,
    parse_list,
    parse_milliseconds,
    parse_used_of,
)
from celery_throttle.clients.profile import (
    REQUESTS,
    Meaning,
    Profile,
    Quantity,
    Quota,
    Sign,
    Wait,
)

#: Where most APIs say when to come again; the first two are of OpenAI and Azure.
RETRY_AFTER = (
    Wait("retry-after-ms", parse=parse_milliseconds),
    Wait("x-ms-retry-after-ms", parse=parse_milliseconds),
    Wait("retry-after"),
)

#: 529 is Anthropic's, and of some others.
OVERLOADED = 529

#: A vendor that says 503 asks for patience, whatever its limits are.
OVERLOADS = Sign(Meaning.OVERLOAD, statuses=(HTTPStatus.SERVICE_UNAVAILABLE, OVERLOADED))
REFUSALS = Sign(Meaning.REFUSAL, statuses=(HTTPStatus.TOO_MANY_REQUESTS,))

_MAX_CHARACTERS = 1000


def read_ietf(answer: Answer) -> list[Quota]:
    """Return the quotas of the header ``RateLimit``, from draft 07 on.

    Raises:
        ValueError: a header is malformed; then all of it is ignored, as draft 11 says.
    """
    text = answer.headers.get("ratelimit", "").strip(" \t")
    if not text:
        return []
    policy = answer.headers.get("ratelimit-policy", "").strip(" \t")
    if len(text) + len(policy) > _MAX_CHARACTERS:
        raise ValueError(f"ratelimit: more than {_MAX_CHARACTERS} characters, ignored")
    try:
        members = parse_list(text)
    except ValueError:
        return [_draft_07(text)]
    policies = _policies(policy)
    return [_member(name, about, policies) for name, about in members]


def _draft_07(text: str) -> Quota:
    """Return the quota of ``limit=100, remaining=50, reset=5``."""
    try:
        fields = parse_dictionary(text)
    except ValueError as error:
        raise ValueError(f"ratelimit: {text!r} {error}, ignored") from None
    return Quota(
        REQUESTS,
        _whole(fields.get("remaining")),
        _whole(fields.get("limit")),
        _seconds(fields.get("reset")),
    )


def _policies(text: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters of each policy, by its name. Policies that are malformed are unknown."""
    try:
        return {str(name): about for name, about in parse_list(text)} if text else {}
    except ValueError:
        return {}


def _member(
    name: Any, about: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]
) -> Quota:
    policy = policies.get(str(name), {})
    unit = str(policy.get("qu", REQUESTS))
    return Quota(unit, _whole(about.get("r")), _whole(policy.get("q")), _seconds(about.get("t")))


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"ratelimit: {value!r} is no whole number, ignored")
    return value


def _seconds(value: Any) -> float | None:
    whole = _whole(value)
    return None if whole is None else float(whole)


def _quotas(answer: Answer) -> list[Quota]:
    """Return the quotas of the IETF, and those of Shopify's header, which others copy."""
    found = read_ietf(answer)
    text = answer.headers.get("x-shopify-shop-api-call-limit")
    if text is not None:
        used, limit = parse_used_of(text)
        found.append(Quota(REQUESTS, max(limit - used, 0), limit))
    return found


def _headers(prefix: str, reset: str = "") -> Quantity:
    return Quantity(REQUESTS, f"{prefix}remaining", f"{prefix}limit", reset or f"{prefix}reset")


#: The headers of APIs without a profile of their own.
GENERIC = Profile(
    name="an API without a profile",
    sources=(
        "https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/",
        "https://www.rfc-editor.org/rfc/rfc9110#name-retry-after",
        "https://www.rfc-editor.org/rfc/rfc6585#section-4",
    ),
    read_on=date(2026, 11, 25),
    quantities=(
        _headers("ratelimit-"),
        _headers("x-ratelimit-"),
        _headers("x-rate-limit-"),
    ),
    signs=(
        REFUSALS,
        Sign(Meaning.REFUSAL, statuses=(HTTPStatus.FORBIDDEN,), header="retry-after"),
        # Without a time, it may be broken for any reason.
        replace(OVERLOADS, header="retry-after"),
    ),
    waits=RETRY_AFTER,
    quotas=_quotas,
)
