"""Methods of real SDKs through ``wrap()``: what their limits learn from the errors they raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from botocore.exceptions import ClientError

from celery_throttle import Limiter, Throttled, wrap
from celery_throttle.clients.profiles import ANTHROPIC, AWS, OPENAI
from celery_throttle.limiter.handle import LimitHandle
from tests.clients.aws import S3, client_of
from tests.clients.vendors import Anthropic, OpenAI, Reply, Vendor

LIMITS = {
    "global": "1000/d burst 50",
    "tenant": "1000/d burst 2",
    "learned": "adaptive 10..1000/s burst 1000",
    "pool": "2 at once",
}
SECONDS = 300

Call = Callable[[], Any]


def of_openai(api: Vendor) -> Call:
    client = openai.OpenAI(api_key="x", base_url=f"{api.url}/v1", max_retries=0)
    messages: Any = [{"role": "user", "content": "9 tokens"}]
    return lambda: client.chat.completions.create(model="m", messages=messages)


def of_anthropic(api: Vendor) -> Call:
    client = anthropic.Anthropic(api_key="x", base_url=api.url, max_retries=0)
    messages: Any = [{"role": "user", "content": "9 in 9 out"}]
    return lambda: client.messages.create(model="m", max_tokens=9, messages=messages)


def of_boto3(api: Vendor) -> Call:
    client = client_of("s3", api, mode="standard", total_max_attempts=1)
    return lambda: client.head_bucket(Bucket="b")


#: The vendor, how it is called, its profile, the error of the SDK, and an overload.
SDKS: dict[str, tuple[Any, Any, Any, Any, Reply]] = {
    "openai": (OpenAI, of_openai, OPENAI, openai.APIStatusError, Reply(503, {})),
    "anthropic": (
        Anthropic,
        of_anthropic,
        ANTHROPIC,
        anthropic.APIStatusError,
        Reply(529, {"type": "error", "error": {"type": "overloaded_error"}}),
    ),
    "boto3": (S3, of_boto3, AWS, ClientError, Reply(503, b"")),
}


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(sdk: str) -> Iterator[Vendor]:
    api = SDKS[sdk][0](dict.fromkeys(("requests", "tokens", "input-tokens"), 6_000_000))
    yield api
    api.close()


@pytest.fixture
def call(sdk: str, api: Vendor) -> Call:
    made: Call = SDKS[sdk][1](api)
    return made


def test_a_refusal_with_a_reset_pauses_its_limit_for_that_time(
    sdk: str, api: Vendor, call: Call, limiter: Limiter
) -> None:
    refusal = api.refusal("requests", SECONDS - 1)
    refusal.headers["retry-after"] = str(SECONDS)
    refusal.headers.pop("retry-after-ms", None)
    api.replies = [refusal]
    wrapped = wrap(limiter["global"], call, profile=SDKS[sdk][2])
    with pytest.raises(SDKS[sdk][3]):
        wrapped()
    assert SECONDS - 60 < (limiter["global"].peek().retry_after or 0) <= SECONDS
    with pytest.raises(Throttled):
        wrapped()
    assert api.statuses() == [refusal.status]


def test_an_overload_leaves_the_learned_rate_as_it_was(
    sdk: str, api: Vendor, call: Call, limiter: Limiter
) -> None:
    api.replies = [SDKS[sdk][4]]
    with pytest.raises(SDKS[sdk][3]):
        wrap(limiter["learned"], call, profile=SDKS[sdk][2])()
    assert limiter["learned"].status().usage[0].share == 1.0


def test_a_global_limit_and_that_of_a_tenant(
    sdk: str, api: Vendor, call: Call, limiter: Limiter
) -> None:
    """The global limit has one count, whatever the tenant."""

    def limits_of(tenant: str) -> list[LimitHandle]:
        return [limiter["global"], limiter["tenant", tenant]]

    def call_for(_: str) -> Any:
        return call()

    wrapped = wrap(limits_of, call_for, profile=SDKS[sdk][2])
    for tenant in ("a", "a", "b"):
        wrapped(tenant)
    with pytest.raises(Throttled) as caught:
        wrapped("a")
    assert (caught.value.limit, caught.value.key) == ("tenant", "a")
    assert limiter["global"].peek(0).remaining == 50 - 3
    assert limiter["tenant", "b"].peek(0).remaining == 1
    assert api.statuses() == [200] * 3


def test_a_slot_is_held_until_the_stream_of_an_sdk_is_closed(limiter: Limiter) -> None:
    is_closed = threading.Event()

    def events() -> Iterator[tuple[str, Any]]:
        yield "", {"choices": [{"delta": {"content": "hi"}}]}
        is_closed.wait(30)

    api = OpenAI({"requests": 6_000_000})
    api.replies = [Reply(events=events())]
    with openai.OpenAI(api_key="x", base_url=f"{api.url}/v1", max_retries=0) as client:
        create: Any = wrap(limiter["pool"], client.chat.completions.create)
        with create(model="m", messages=[], stream=True) as stream:
            assert next(stream).choices[0].delta.content == "hi"
            assert limiter["pool"].peek(0).remaining == 1
        assert limiter["pool"].peek(0).remaining == 2
    is_closed.set()
    api.close()
