"""gRPC: interceptors that acquire limits before each call and learn from its status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.calls.call import Exchange, GuardedCall, call_steps, release_later
from celery_throttle.clients.calls.guard import CallCost, Guard, GuardedLimits, Usage
from celery_throttle.clients.profiles.models import GOOGLE
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.clients.wrapped import AsyncPassingItems, PassingItems
from celery_throttle.store.steps import arun_steps, run_steps

#: The statuses of HTTP that stand for codes of gRPC (google/rpc/code.proto); 500 for others.
_HTTP_STATUSES = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}

# Where servers put the time until the next call: each alone, or in a list of details.
_RETRY_INFO, _STATUS = "google.rpc.retryinfo-bin", "grpc-status-details-bin"


class ThrottledInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]  # grpc has no types
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """A client interceptor that acquires limits before each call and learns from its status.

    The status ``RESOURCE_EXHAUSTED`` is a refusal, and ``UNAVAILABLE`` an overload. The limits
    pause for the time of a ``google.rpc.RetryInfo`` in the trailing metadata. A call that returns a
    stream begins when its first message is there, and holds a slot until its end. A call by
    ``future()`` waits for its result.

    Each call raises :exc:`~celery_throttle.Throttled` or
    :exc:`~celery_throttle.StoreUnavailableError` under the conditions of
    :meth:`~celery_throttle.clients.httpx.ThrottledTransport.handle_request`.

    The arguments ``limits``, ``profile``, ``cost``, ``max_wait`` and ``retry_refused``, and their
    defaults, are those of ``ThrottledTransport``, but the default ``profile`` is
    :data:`celery_throttle.clients.profiles.GOOGLE`. Functions take the ``grpc.ClientCallDetails``
    and the request, a message or an iterator of messages, which counts as a stream.

    Args:
        usage: A function of a response message that returns the actual cost, in the forms of
            ``cost``; of a stream, ``{}`` for the messages that do not tell it.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            channel = grpc.intercept_channel(
                grpc.secure_channel(address, credentials), ThrottledInterceptor(throttle["speech"])
            )
    """

    def __init__(
        self,
        limits: GuardedLimits,
        *,
        profile: Profile = GOOGLE,
        cost: CallCost | None = None,
        usage: Usage | None = None,
        max_wait: float = 0.0,
        retry_refused: int = 0,
    ) -> None:
        self._guard = Guard(limits, profile, cost, usage, max_wait, retry_refused)

    def _call(self, exchange: type[_GrpcExchange], *args: Any) -> Any:
        continuation, details, request = args
        steps = call_steps(
            self._guard,
            exchange(partial(continuation, details, request), request),
            details,
            request,
        )
        return run_steps(steps).call

    def intercept_unary_unary(self, *args: Any) -> Any:
        """Make a call, once its limits allow it."""
        return self._call(_UnaryExchange, *args)

    def intercept_unary_stream(self, *args: Any) -> Any:
        """Make a call that returns a stream, once its limits allow it."""
        return self._call(_StreamExchange, *args)

    intercept_stream_unary = intercept_unary_unary
    intercept_stream_stream = intercept_unary_stream


def throttled_interceptors(limits: GuardedLimits, **options: Any) -> list[aio.ClientInterceptor]:
    """Return the asyncio twins of :class:`ThrottledInterceptor`: one for each kind of call.

    Args:
        limits: See :class:`ThrottledInterceptor`.
        options: The other arguments of :class:`ThrottledInterceptor`.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            channel = grpc.aio.secure_channel(
                address, credentials, interceptors=throttled_interceptors(throttle["speech"])
            )
    """
    guard = Guard(limits, options.pop("profile", GOOGLE), **options)
    unary = partial(_call_later, guard, _AsyncUnaryExchange)
    stream = partial(_call_later, guard, _AsyncStreamExchange)
    kinds = {
        "unary_unary": (aio.UnaryUnaryClientInterceptor, unary),
        "unary_stream": (aio.UnaryStreamClientInterceptor, stream),
        "stream_unary": (aio.StreamUnaryClientInterceptor, unary),
        "stream_stream": (aio.StreamStreamClientInterceptor, stream),
    }
    return [
        type(f"Throttled{base.__name__}", (base,), {f"intercept_{name}": staticmethod(intercept)})()
        for name, (base, intercept) in kinds.items()
    ]


async def _call_later(
    guard: Guard, exchange: type[_GrpcExchange], continuation: Any, details: Any, request: Any
) -> Any:
    sending = exchange(partial(continuation, details, request), request)
    sent = await arun_steps(call_steps(guard, sending, details, request))
    if sent.error is not None:
        raise sent.error  # asyncio's stream has raised it, and would end without it
    return sent.call


@dataclass(slots=True)
class _Sent:
    """A call whose status is known; of a stream, ``OK`` means that its first message is there."""

    call: Any
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    metadata: Any = ()
    value: Any = None
    error: grpc.RpcError | None = None  #: of a stream that has raised it in place of a message


class _GrpcExchange(Exchange[_Sent]):
    def __init__(self, make_call: Callable[[], Any], request: Any) -> None:
        self._make_call = make_call
        self._is_repeatable = not isinstance(request, (Iterator, AsyncIterator))

    def is_repeatable(self) -> bool:
        return self._is_repeatable

    def answer(self, response: _Sent) -> ApiAnswer:
        status = _HTTP_STATUSES.get(response.code, 500)
        if response.code is grpc.StatusCode.OK:
            return ApiAnswer(status)
        return ApiAnswer(status, None, partial(_error_of, response))

    def watch(self, response: _Sent, call: GuardedCall[_Sent]) -> bool:
        if response.value is not None:
            call.read(response.value)
        return False


class _UnaryExchange(_GrpcExchange):
    def send(self) -> _Sent:
        call = self._make_call()
        code = call.code()
        value = call.result() if code is grpc.StatusCode.OK else None
        return _Sent(call, code, call.details(), call.trailing_metadata(), value)


class _AsyncUnaryExchange(_GrpcExchange):
    async def send(self) -> _Sent:
        call, value = await self._make_call(), None
        with suppress(grpc.RpcError):
            value = await call  # cancels the call if it is cancelled itself
        metadata = await call.trailing_metadata()
        return _Sent(call, await call.code(), await call.details(), metadata, value)


class _StreamExchange(_GrpcExchange):
    def send(self) -> Any:
        call = self._make_call()
        try:
            first = [next(call)]
        except StopIteration:
            first = []
        except grpc.RpcError:
            return _Sent(call, call.code(), call.details(), call.trailing_metadata())
        return _Sent(_Messages(call, first))

    def may_end_in_error(self, response: _Sent) -> bool:  # noqa: ARG002  # any stream may
        return True

    def read_error(self, error: Any) -> ApiAnswer | None:
        if not isinstance(error, grpc.RpcError):
            return None
        return self.answer(_Sent(error, error.code(), error.details(), error.trailing_metadata()))

    def watch(self, response: _Sent, call: GuardedCall[_Sent]) -> bool:
        response.call = PassingItems(response.call, call)
        return True


class _AsyncStreamExchange(_StreamExchange):
    async def send(self) -> _Sent:
        call = await self._make_call()
        try:
            first = [await anext(aiter(call))]
        except StopAsyncIteration:
            first = []
        except grpc.RpcError as error:
            metadata = await call.trailing_metadata()
            return _Sent(call, await call.code(), await call.details(), metadata, error=error)
        return _Sent(_Messages(call, first))

    def watch(self, response: _Sent, call: GuardedCall[_Sent]) -> bool:
        # A cancelled call is not read to its end.
        messages = response.call
        messages.add_done_callback(release_later(call, lambda: not messages.cancelled()))
        response.call = AsyncPassingItems(messages, call)
        return True


class _Messages:
    """The messages of a stream, of which the first has been read. Otherwise as the call."""

    def __init__(self, call: Any, first: list[Any]) -> None:
        self._call = call
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._call)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._first.pop() if self._first else await anext(aiter(self._call))


def _error_of(sent: _Sent) -> dict[str, Any]:
    """Return an error in the form that Google's APIs have in JSON, which its profile reads."""
    metadata = {
        name: value for name, value in sent.metadata or () if name in {_RETRY_INFO, _STATUS}
    }
    details: list[Any] = []
    try:
        if _RETRY_INFO in metadata:
            details = [MessageToDict(RetryInfo.FromString(metadata[_RETRY_INFO]))]
        elif _STATUS in metadata:
            parts = Status.FromString(metadata[_STATUS]).details
            found = (part.value for part in parts if part.Is(RetryInfo.DESCRIPTOR))
            details = [MessageToDict(RetryInfo.FromString(value)) for value in found]
    except (DecodeError, SerializeToJsonError):  # a duration may be out of range
        details = []
    error = {"status": sent.code.name, "message": sent.details, "details": details}
    return {"error": error}
