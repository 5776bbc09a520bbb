"""boto3 and botocore: clients of every service of AWS, and resources of boto3.

The limits are acquired in the HTTP session of a client, which each attempt passes in all modes of
botocore's retries. Nothing is acquired if a handler of ``before-send`` answers in place of AWS.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.eventstream import EventStreamBuffer
from botocore.parsers import ResponseParserError, create_parser

from celery_throttle.clients.answer import parse_json
from celery_throttle.clients.calls.call import GuardedCall, call_steps
from celery_throttle.clients.calls.guard import Guard, GuardedLimits
from celery_throttle.clients.calls.http import HttpExchange
from celery_throttle.clients.profiles.aws import AWS
from celery_throttle.clients.urllib3 import watch_body
from celery_throttle.store.steps import run_steps

_WHOLE = (bytes, bytearray, str)

_EVENT_STREAM = "application/vnd.amazon.eventstream"


def throttle_client(client: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a client like one of botocore that acquires limits; see ``throttled()``."""
    options["profile"] = options["profile"] or AWS
    guard = Guard(limits, **options)
    endpoint = copy.copy(client._endpoint)  # noqa: SLF001  # it has no public name
    endpoint.http_session = _GuardedSession(endpoint.http_session, guard, _protocol(client))
    endpoint._needs_retry = partial(_needs_retry, endpoint._needs_retry)  # noqa: SLF001
    return _copied(client, _endpoint=endpoint)


def throttle_resource(resource: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a resource like one of boto3 that acquires limits, as do those made from it."""
    meta = copy.copy(resource.meta)
    meta.client = throttle_client(meta.client, limits, **options)
    return _copied(resource, meta=meta)


def _copied(value: Any, **changes: Any) -> Any:
    # copy.copy() asks for attributes of the new object, which a client looks up in its service.
    new = object.__new__(type(value))
    new.__dict__.update(value.__dict__, **changes)
    return new


def _protocol(client: Any) -> str:
    model = client.meta.service_model
    # Before botocore 1.36 a service has one protocol.
    protocol: str = getattr(model, "resolved_protocol", None) or model.protocol
    return protocol


def _needs_retry(  # noqa: PLR0917  # as botocore has it
    judge: Callable[..., bool],
    attempts: int,
    operation: Any,
    request: Any,
    response: Any = None,
    error: Exception | None = None,
) -> bool:
    """Return whether botocore repeats a request: not after a refusal of which the limits know."""
    if response is not None and getattr(response[0], "is_given_up", False):
        return False
    return judge(attempts, operation, request, response, error)


class _GuardedSession:
    """Sends as the HTTP session of botocore, once the limits allow it."""

    def __init__(self, session: Any, guard: Guard, protocol: str) -> None:
        self._session = session
        self._guard = guard
        self._protocol = protocol

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        send = partial(self._session.send, request)
        exchange = _BotocoreExchange(request, send, self._protocol)
        return run_steps(call_steps(self._guard, exchange, request))

    def close(self) -> None:
        self._session.close()


class _BotocoreExchange(HttpExchange[AWSResponse]):
    """The bodies come decoded, as requests ask for "identity"."""

    def __init__(self, request: AWSPreparedRequest, send: Callable[[], Any], protocol: str) -> None:
        super().__init__(request, send)
        self._protocol = protocol

    def is_repeatable(self) -> bool:
        body = self.request.body
        return body is None or isinstance(body, _WHOLE) or hasattr(body, "seek")

    def read_body(self, response: AWSResponse) -> Any:
        """Return the body; of an error, what botocore reads from it, whatever the protocol is."""
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return response.content
        parts = {
            "status_code": response.status_code,
            "headers": response.headers,
            "body": response.content,
            "context": {},
        }
        try:
            return create_parser(self._protocol).parse(parts, None)
        except ResponseParserError:  # no answer of AWS; botocore raises the same
            return response.content

    def close(self, response: AWSResponse) -> None:
        response.raw.close()

    def give_up(self, response: AWSResponse) -> None:
        response.is_given_up = True
        if self.is_repeatable():
            self.request.reset_stream()

    def watch(self, response: AWSResponse, call: GuardedCall[AWSResponse]) -> bool:
        if not self.request.stream_output or not hasattr(response.raw, "release_conn"):
            return False
        watched: Any = call
        if response.headers.get("content-type") == _EVENT_STREAM:
            watched = _EventReader(call)
        watch_body(response.raw, watched)
        return True


class _EventReader:
    """Reads the events of AWS's binary streams, such as that of Bedrock's ``converse_stream``."""

    def __init__(self, call: GuardedCall[AWSResponse]) -> None:
        self.end, self.finish, self.release = call.end, call.finish, call.release
        self._call = call
        self._buffer = EventStreamBuffer()

    def feed(self, piece: bytes) -> None:
        self._buffer.add_data(piece)
        for event in self._buffer:
            if event.headers.get(":content-type") == "application/json":
                self._call.read(parse_json(event.payload))
