"""Interceptors of gRPC against a server that refuses as Google documents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from celery_throttle import Limiter, Throttled
from celery_throttle.clients.grpc import ThrottledInterceptor, throttled_interceptors
from tests.servers.server import wait_until

LIMITS = {"calls": "1000/d burst 3", "units": "100000/d burst 100", "pool": "1 at once"}
METHODS = ("unary", "stream")


class Api:
    """The methods ``unary`` and ``stream``; they refuse as often as is given."""

    def __init__(self) -> None:
        self.refusals: list[tuple[grpc.StatusCode, list[tuple[str, bytes]]]] = []
        self.calls = 0
        #: Answers wait for it.
        self.may_answer = threading.Event()
        self.may_answer.set()
        #: A call has ended, or was cancelled.
        self.has_ended = threading.Event()
        #: Ends streams, after their first message.
        self.end: tuple[grpc.StatusCode, list[tuple[str, bytes]]] | None = None
        self._server = grpc.server(ThreadPoolExecutor(4))
        encode = {
            "request_deserializer": StringValue.FromString,
            "response_serializer": StringValue.SerializeToString,
        }
        handlers = {
            "unary": grpc.unary_unary_rpc_method_handler(self._answer, **encode),
            "stream": grpc.unary_stream_rpc_method_handler(self._answers, **encode),
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("api", handlers)]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0)

    def _answer(self, request: StringValue, context: grpc.ServicerContext) -> StringValue:
        context.add_callback(self.has_ended.set)
        self.calls += 1
        self.may_answer.wait(10)
        if self.refusals:
            code, metadata = self.refusals.pop(0)
            context.set_trailing_metadata(metadata)
            context.abort(code, "no")
        return request

    def _answers(self, request: StringValue, context: Any) -> Iterator[StringValue]:
        for _ in range(3):
            yield self._answer(request, context)
            self.calls -= 1
            if self.end is not None:
                self.refusals.append(self.end)
        self.calls += 1


def retry_info(seconds: int, form: str) -> list[tuple[str, bytes]]:
    info = RetryInfo(retry_delay=Duration(seconds=seconds))
    if form == "alone":
        return [("google.rpc.retryinfo-bin", info.SerializeToString())]
    packed = AnyMessage()
    packed.Pack(info)
    status = Status(code=8, message="no", details=[packed])
    return [("grpc-status-details-bin", status.SerializeToString())]


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


def call_of(channel: Any, method: str) -> Any:
    """Return a method of the API."""
    make = channel.unary_unary if method == "unary" else channel.unary_stream
    return make(
        f"/api/{method}",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )


@pytest.fixture
def make(api: Api) -> Callable[..., Callable[[], list[str]]]:
    """Make a function that calls a method, and returns the texts of the answer."""

    def make(limits: Any, method: str = "unary", **options: Any) -> Callable[[], list[str]]:
        plain = grpc.insecure_channel(api.address)
        call = call_of(
            grpc.intercept_channel(plain, ThrottledInterceptor(limits, **options)), method
        )

        def result() -> list[str]:
            answer = call(StringValue(value="12"))
            return [answer.value] if method == "unary" else [each.value for each in answer]

        return result

    return make


@pytest.mark.parametrize("method", METHODS)
def test_what_the_limit_refuses_is_not_sent(
    make: Any, api: Api, limiter: Limiter, method: str
) -> None:
    call = make(limiter["calls"], method)
    assert [call() for _ in range(3)] == [["12"] * (1 if method == "unary" else 3)] * 3
    with pytest.raises(Throttled):
        call()
    assert api.calls == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["alone", "status"])
def test_a_refusal_pauses_for_its_time(
    make: Any, api: Api, limiter: Limiter, method: str, form: str
) -> None:
    api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(30, form))]
    with pytest.raises(grpc.RpcError) as caught:
        make(limiter["calls"], method)()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 29 < (limiter["calls"].peek().retry_after or 0) <= 30


@pytest.mark.parametrize("method", METHODS)
def test_a_refused_call_is_made_again(make: Any, api: Api, limiter: Limiter, method: str) -> None:
    api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, [])]
    assert set(make(limiter["calls"], method, retry_refused=1)()) == {"12"}
    assert api.calls == 2


def test_other_errors_pause_nothing(make: Any, api: Api, limiter: Limiter) -> None:
    api.refusals = [(grpc.StatusCode.INVALID_ARGUMENT, [])]
    with pytest.raises(grpc.RpcError):
        make(limiter["calls"])()
    assert limiter["calls"].peek().allowed


def test_an_api_that_is_not_available_pauses_its_limits(
    make: Any, api: Api, limiter: Limiter
) -> None:
    api.refusals = [(grpc.StatusCode.UNAVAILABLE, [])]
    with pytest.raises(grpc.RpcError):
        make(limiter["calls"])()
    assert (limiter["calls"].peek().retry_after or 0) > 0


@pytest.mark.parametrize(
    "details", [[("google.rpc.retryinfo-bin", b"\xff\xff")], retry_info(10**13, "alone")]
)
def test_details_that_are_malformed_are_ignored(
    make: Any, api: Api, limiter: Limiter, details: list[tuple[str, bytes]]
) -> None:
    api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, details)]
    with pytest.raises(grpc.RpcError):
        make(limiter["calls"])()
    assert 0 < (limiter["calls"].peek().retry_after or 0) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_call_costs_what_its_messages_tell(make: Any, limiter: Limiter, method: str) -> None:
    make(limiter["units"], method, cost=50, usage=lambda message: int(message.value))()
    assert 100 - limiter["units"].peek(0).remaining == 12


def test_limits_are_a_function_of_the_method_and_the_request(make: Any, limiter: Limiter) -> None:
    def limits(details: Any, request: StringValue) -> Any:
        assert (details.method, request.value) == ("/api/unary", "12")
        return limiter["calls", request.value]

    make(limits)()
    assert limiter["calls", "12"].peek(0).remaining == 2


def test_a_stream_holds_a_slot_until_its_end(api: Api, limiter: Limiter) -> None:
    channel = grpc.intercept_channel(
        grpc.insecure_channel(api.address), ThrottledInterceptor(limiter["pool"])
    )
    call = call_of(channel, "stream")
    stream = call(StringValue(value="1"))
    with pytest.raises(Throttled):
        list(call(StringValue(value="1")))
    assert len(list(stream)) == 3
    stream = call(StringValue(value="1"))
    stream.cancel()
    list(call(StringValue(value="1")))


@pytest.mark.parametrize("name", ["calls", "pool"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_refusal_that_ends_a_stream_pauses_for_its_time(
    make: Any, api: Api, limiter: Limiter, name: str, *, is_async: bool
) -> None:
    api.end = grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(30, "alone")
    interceptors = throttled_interceptors(limiter[name])

    async def read() -> None:
        async with grpc.aio.insecure_channel(api.address, interceptors=interceptors) as channel:
            _ = [each async for each in call_of(channel, "stream")(StringValue(value="12"))]

    with pytest.raises(grpc.RpcError) as caught:
        await read() if is_async else make(limiter[name], "stream")()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 29 < ((await limiter[name].apeek()).retry_after or 0) <= 30
    await limiter.store.aclose()


@pytest.mark.parametrize("method", METHODS)
async def test_asyncio(api: Api, limiter: Limiter, method: str) -> None:
    interceptors = throttled_interceptors(limiter["calls"], retry_refused=1)
    api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, [])]
    async with grpc.aio.insecure_channel(api.address, interceptors=interceptors) as channel:
        call = call_of(channel, method)

        async def result() -> list[str]:
            answer = call(StringValue(value="12"))
            if method == "unary":
                return [(await answer).value]
            return [each.value async for each in answer]

        assert set(await result()) == {"12"}
        assert set(await result()) == {"12"}
        with pytest.raises(Throttled):
            await result()
        api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(30, "alone"))]
    assert api.calls == 3
    assert not await asyncio.to_thread(limiter["calls"].peek)
    await limiter.store.aclose()


@pytest.mark.parametrize("method", METHODS)
async def test_an_error_reaches_the_caller_with_asyncio(
    api: Api, limiter: Limiter, method: str
) -> None:
    interceptors = throttled_interceptors([limiter["calls"], limiter["pool"]])
    api.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, [])]
    async with grpc.aio.insecure_channel(api.address, interceptors=interceptors) as channel:
        answer = call_of(channel, method)(StringValue(value="12"))
        with pytest.raises(grpc.RpcError) as caught:
            await answer if method == "unary" else [each async for each in answer]
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await answer.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    limiter.resume_all()
    assert limiter["pool"].peek(0).remaining == 1
    await limiter.store.aclose()


@pytest.mark.parametrize("by", ["its task", "the call"])
@pytest.mark.parametrize("method", METHODS)
async def test_a_call_that_is_cancelled_with_asyncio_is_cancelled_at_the_server(
    api: Api, limiter: Limiter, method: str, by: str
) -> None:
    """Its slot is free at once."""
    api.may_answer.clear()
    interceptors = throttled_interceptors(limiter["pool"])
    async with grpc.aio.insecure_channel(api.address, interceptors=interceptors) as channel:
        answer = call_of(channel, method)(StringValue(value="12"))

        async def read() -> None:
            await answer if method == "unary" else [each async for each in answer]

        task = asyncio.create_task(read())
        await asyncio.to_thread(wait_until, lambda: api.calls, "a call", 5)
        (task if by == "its task" else answer).cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(api.has_ended.wait, 5)
        api.may_answer.set()
    await limiter.store.aclose()
    assert limiter["pool"].peek().allowed
