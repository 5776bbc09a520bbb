"""Profiles of language models: OpenAI and those who copy its API, Anthropic, Google."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from celery_throttle.clients.profiles.generic import (
    OVERLOADS,
    REFUSALS,
    RETRY_AFTER,
    quantity,
)
from celery_throttle.clients.profiles.header_values import parse_duration
from celery_throttle.clients.profiles.profile import (
    REQUESTS,
    Meaning,
    Profile,
    Quantity,
    Reset,
    Sign,
    Units,
    Wait,
)

#: Seconds of the quotas of OpenAI and Anthropic: requests and tokens per minute.
MINUTE = 60.0

TOKENS, INPUT_TOKENS, OUTPUT_TOKENS = "tokens", "input_tokens", "output_tokens"

#: English text has about four characters a token, as OpenAI and Anthropic say.
CHARACTERS_PER_TOKEN = 4

#: The tokens of an image or another attachment, which is sent as bytes or by its address.
ATTACHMENT_TOKENS = 1_000

#: Fields of a request that hold text for the model, and fields with attachments.
_TEXT_FIELDS = ("messages", "input", "prompt", "system", "instructions", "contents", "tools")
_TEXT_FIELDS_OF_GOOGLE = ("systemInstruction", "system_instruction")
_ATTACHMENTS = ("data", "bytes", "image_url", "file_data", "url", "inlineData", "inline_data")


def count_input(request: Mapping[str, Any]) -> int:
    """Return about how many tokens the texts of a request have."""
    fields = (*_TEXT_FIELDS, *_TEXT_FIELDS_OF_GOOGLE)
    return sum(_count(request[name]) for name in fields if name in request)


def _count(value: Any) -> int:
    if isinstance(value, str):
        return -(-len(value) // CHARACTERS_PER_TOKEN)
    if isinstance(value, Mapping):
        return sum(
            ATTACHMENT_TOKENS if name in _ATTACHMENTS else _count(part)
            for name, part in value.items()
        )
    if isinstance(value, (list, tuple)):
        return sum(map(_count, value))
    return int(_is_number(value))  # input may be a list of tokens


def _first(source: Mapping[str, Any], *names: str) -> float:
    """Return the first of some numbers that is there; 0 if none is."""
    return next((float(source[name]) for name in names if _is_number(source.get(name))), 0.0)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mappings(*values: Any) -> Iterator[Mapping[str, Any]]:
    return (value for value in values if isinstance(value, Mapping))


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


# OpenAI.


def _openai_estimate(request: Mapping[str, Any]) -> Units:
    most = _first(request, "max_completion_tokens", "max_output_tokens", "max_tokens")
    answers = max(_first(request, "n"), 1.0)
    return {TOKENS: count_input(request) + most * answers}


def _openai_usage(body: Mapping[str, Any]) -> Units:
    """Return the tokens of a response, of an event of the Responses API, or of the last chunk."""
    places = (
        body.get("usage"),
        _part(body.get("response"), "usage"),
        _part(body.get("x_groq"), "usage"),
    )
    for usage in _mappings(*places):
        parts = _first(usage, "prompt_tokens", "input_tokens") + _first(
            usage, "completion_tokens", "output_tokens"
        )
        return {TOKENS: _first(usage, "total_tokens") or parts}
    return {}


#: Errors about money: sending the request again does not help.
BILLING_CODES = (
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "billing_hard_limit_reached",
)

OPENAI = Profile(
    name="OpenAI",
    quantities=(
        quantity(REQUESTS, "x-ratelimit-{}-requests", Reset.FULL, MINUTE),
        quantity(TOKENS, "x-ratelimit-{}-tokens", Reset.FULL, MINUTE),
        quantity(TOKENS, "x-ratelimit-{}-project-tokens", Reset.FULL, MINUTE),
    ),
    signs=(
        Sign(Meaning.FAILURE, statuses=(429,), codes=BILLING_CODES),
        Sign(Meaning.OVERLOAD, statuses=(429,), text="resource unavailable"),
        Sign(Meaning.OVERLOAD, codes=("server_is_overloaded",)),
        Sign(Meaning.REFUSAL, statuses=(429,), codes=("tokens",), quantities=(TOKENS,)),
        Sign(Meaning.REFUSAL, statuses=(429,), codes=("requests",), quantities=(REQUESTS,)),
        REFUSALS,
        OVERLOADS,
    ),
    # The SDK's exceptions have the object `error` alone.
    codes=("error.code", "error.type", "code", "type", "response.error.code"),
    waits=RETRY_AFTER,
    refused_costs=(REQUESTS,),
    estimate=_openai_estimate,
    usage=_openai_usage,
)

AZURE_OPENAI = replace(
    OPENAI,
    name="Azure OpenAI",
    signs=(
        Sign(Meaning.OVERLOAD, statuses=(429,), text="temporarily unable to process"),
        Sign(Meaning.OVERLOAD, statuses=(429,), text="experiencing high demand"),
        REFUSALS,
        OVERLOADS,
    ),
)

GROQ = replace(
    OPENAI,
    name="Groq",
    # The headers of requests are about those of a day, whatever the limit here is.
    quantities=(
        quantity("requests_per_day", "x-ratelimit-{}-requests", Reset.FULL),
        quantity(TOKENS, "x-ratelimit-{}-tokens", Reset.FULL, MINUTE),
    ),
    signs=(*OPENAI.signs, Sign(Meaning.OVERLOAD, statuses=(498,))),
    refused_costs=(),
)

MISTRAL = replace(
    OPENAI,
    name="Mistral",
    quantities=(
        Quantity(REQUESTS, "x-ratelimit-remaining"),
        Quantity(REQUESTS, "x-ratelimit-remaining-req-minute", "x-ratelimit-limit-req-minute"),
        Quantity(TOKENS, "x-ratelimit-remaining-tokens-minute", "x-ratelimit-limit-tokens-minute"),
    ),
    signs=(REFUSALS, OVERLOADS),
    refused_costs=(),
)

TOGETHER = replace(
    OPENAI,
    name="Together",
    quantities=(
        Quantity(REQUESTS, "x-ratelimit-remaining", "x-ratelimit-limit", means=Reset.FULL),
        Quantity(TOKENS, "x-tokenlimit-remaining", "x-tokenlimit-limit", means=Reset.FULL),
    ),
    signs=(
        Sign(
            Meaning.REFUSAL,
            statuses=(429,),
            codes=("dynamic_request_limited",),
            quantities=(REQUESTS,),
        ),
        Sign(
            Meaning.REFUSAL, statuses=(429,), codes=("dynamic_token_limited",), quantities=(TOKENS,)
        ),
        REFUSALS,
        OVERLOADS,
    ),
    codes=(*OPENAI.codes, "error_type", "error.error_type"),
    waits=(*RETRY_AFTER, Wait("x-ratelimit-reset")),
    refused_costs=(),
)

DEEPSEEK = replace(
    OPENAI,
    name="DeepSeek",
    quantities=(),
    signs=(REFUSALS, OVERLOADS),
    refused_costs=(),
)

# Anthropic.


def _anthropic_estimate(request: Mapping[str, Any]) -> Units:
    input_tokens, most = count_input(request), _first(request, "max_tokens")
    return {INPUT_TOKENS: input_tokens, OUTPUT_TOKENS: most, TOKENS: input_tokens + most}


def _anthropic_usage(body: Mapping[str, Any]) -> Units:
    """Return the tokens of a message, or of the events at the begin and end of a stream.

    What the cache has does not count, except for Haiku 3.5.
    """
    found: dict[str, float] = {}
    for usage in _mappings(_part(body.get("message"), "usage"), body.get("usage")):
        if _is_number(usage.get("input_tokens")):
            found[INPUT_TOKENS] = _first(usage, "input_tokens") + _first(
                usage, "cache_creation_input_tokens"
            )
        if _is_number(usage.get("output_tokens")):
            found[OUTPUT_TOKENS] = _first(usage, "output_tokens")
    if "usage" in body and found.keys() >= {INPUT_TOKENS, OUTPUT_TOKENS}:  # not at the begin
        found[TOKENS] = found[INPUT_TOKENS] + found[OUTPUT_TOKENS]
    return found


ANTHROPIC = Profile(
    name="Anthropic",
    quantities=(
        quantity(REQUESTS, "anthropic-ratelimit-requests-{}", Reset.FULL, MINUTE),
        quantity(INPUT_TOKENS, "anthropic-ratelimit-input-tokens-{}", Reset.FULL, MINUTE),
        quantity(OUTPUT_TOKENS, "anthropic-ratelimit-output-tokens-{}", Reset.FULL, MINUTE),
        quantity(TOKENS, "anthropic-ratelimit-tokens-{}", Reset.FULL, MINUTE),
    ),
    signs=(
        Sign(
            Meaning.FAILURE,
            statuses=(429,),
            codes=("enforced_spend_limit_reached", "contract_spend_limit_reached"),
        ),
        REFUSALS,
        Sign(Meaning.OVERLOAD, codes=("overloaded_error",)),
        OVERLOADS,
    ),
    codes=("error.type", "error.details.error_code", "type"),
    waits=RETRY_AFTER,
    estimate=_anthropic_estimate,
    usage=_anthropic_usage,
)

# Google.


def _google_estimate(request: Mapping[str, Any]) -> Units:
    return {INPUT_TOKENS: count_input(request), TOKENS: count_input(request)}


def _google_usage(body: Mapping[str, Any]) -> Units:
    """Return the tokens of a response, or of a chunk of a stream."""
    for usage in _mappings(body.get("usageMetadata"), body.get("usage_metadata")):
        return {
            INPUT_TOKENS: _first(usage, "promptTokenCount", "prompt_token_count")
            + _first(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
            TOKENS: _first(usage, "totalTokenCount", "total_token_count"),
        }
    return {}


GOOGLE = Profile(
    name="Google",
    quantities=(Quantity(INPUT_TOKENS, ""), Quantity(TOKENS, "")),
    signs=(
        Sign(Meaning.REFUSAL, statuses=(429,), text="requestsper", quantities=(REQUESTS,)),
        Sign(Meaning.REFUSAL, statuses=(429,), text="tokensper", quantities=(INPUT_TOKENS, TOKENS)),
        Sign(Meaning.REFUSAL, statuses=(429,), text="quotafailure"),
        Sign(Meaning.OVERLOAD, statuses=(429,), text="resource exhausted, please try again"),
        REFUSALS,
        OVERLOADS,
    ),
    codes=("error.status", "error.code"),
    waits=(Wait(path="error.details.*.retryDelay", parse=parse_duration), *RETRY_AFTER),
    estimate=_google_estimate,
    usage=_google_usage,
)
