"""Clients of boto3 against servers that enforce what AWS documents."""

from __future__ import annotations

import io
import json
from binascii import crc32
from collections.abc import Iterator
from struct import pack
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from celery_throttle import Limiter, Throttled, throttled
from celery_throttle.clients.answer import of_error
from celery_throttle.clients.profiles import AWS
from celery_throttle.clients.profiles.profile import Meaning
from celery_throttle.clients.profiles.reading import read
from tests.clients.aws import S3, DynamoDB, client_of, error_of_dynamodb, error_of_s3
from tests.clients.vendors import Reply

LIMITS = {
    "requests": "1000/d burst 50",
    "reads": "1000/d burst 2",
    "units": "100000/d burst 100",
    "slow": "50/s burst 1",
    "pool": "2 at once",
}
MODES = ("legacy", "standard", "adaptive")


@pytest.fixture
def s3_api() -> Iterator[S3]:
    api = S3({"requests": 60_000})
    yield api
    api.close()


@pytest.fixture
def dynamodb_api() -> Iterator[DynamoDB]:
    api = DynamoDB({"capacity_units": 600_000})
    yield api
    api.close()


def taken(limiter: Limiter, name: str) -> float:
    burst = int(LIMITS[name].split()[-1])
    return burst - limiter[name].peek(0).remaining


def get(client: Any, units: float = 1, **options: Any) -> Any:
    return client.get_item(TableName="t", Key={"units": {"N": str(units)}}, **options)


def test_a_request_takes_one_unit(s3_api: S3, limiter: Limiter) -> None:
    plain = client_of("s3", s3_api)
    client = throttled(plain, limiter["requests"])
    assert isinstance(client, type(plain))
    client.put_object(Bucket="b", Key="k", Body=b"text")
    assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"content " * 10_000
    assert taken(limiter, "requests") == 2
    plain.put_object(Bucket="b", Key="k", Body=b"text")
    assert taken(limiter, "requests") == 2


def test_what_the_limit_refuses_is_not_sent(s3_api: S3, limiter: Limiter) -> None:
    client = throttled(client_of("s3", s3_api), limiter["reads"])
    for _ in range(2):
        client.head_object(Bucket="b", Key="k")
    with pytest.raises(Throttled):
        client.head_object(Bucket="b", Key="k")
    assert len(s3_api.log) == 2


def test_limits_are_a_function_of_the_request(s3_api: S3, limiter: Limiter) -> None:
    client = throttled(
        client_of("s3", s3_api),
        lambda request: limiter["reads" if request.method == "GET" else "requests"],
    )
    client.put_object(Bucket="b", Key="k", Body=b"text")
    client.get_object(Bucket="b", Key="k")
    assert (taken(limiter, "reads"), taken(limiter, "requests")) == (1, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "code", ["SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"]
)
def test_a_refusal_pauses_its_limit_and_is_not_repeated(
    s3_api: S3, limiter: Limiter, mode: str, code: str
) -> None:
    s3_api.replies = [error_of_s3(503, code)]
    client = throttled(
        client_of("s3", s3_api, mode=mode, max_attempts=4), limiter["requests"], retry_refused=0
    )
    with pytest.raises(ClientError, match=code):
        client.put_object(Bucket="b", Key="k", Body=b"text")
    assert s3_api.statuses() == [503]
    assert 0 < (limiter["requests"].peek().retry_after or 0) <= 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("body", [b"text", io.BytesIO(b"text")], ids=["bytes", "file"])
def test_a_refused_request_is_sent_again_once_its_limit_goes_on(
    s3_api: S3, limiter: Limiter, body: Any
) -> None:
    s3_api.replies = [error_of_s3(503, "SlowDown")]
    client_of_s3 = client_of("s3", s3_api)
    throttled(client_of_s3, limiter["requests"]).put_object(Bucket="b", Key="k", Body=body)
    assert s3_api.statuses() == [503, 200]
    assert s3_api.requests[0]["body"] == s3_api.requests[1]["body"]
    assert b"text" in s3_api.requests[1]["body"]


@pytest.mark.parametrize("mode", MODES)
def test_each_attempt_of_the_sdk_takes_a_unit(s3_api: S3, limiter: Limiter, mode: str) -> None:
    s3_api.replies = [error_of_s3(500, "InternalError")]
    client = throttled(client_of("s3", s3_api, mode=mode), limiter["requests"])
    client.put_object(Bucket="b", Key="k", Body=b"text")
    assert s3_api.statuses() == [500, 200]
    assert taken(limiter, "requests") == 2


def test_a_resource_is_limited_with_all_that_is_made_from_it(
    dynamodb_api: DynamoDB, limiter: Limiter
) -> None:
    resource = throttled(client_of("dynamodb", dynamodb_api, boto3.resource), limiter["requests"])
    assert resource.Table("t").get_item(Key={"units": 1})["Item"] == {"units": 1}
    assert taken(limiter, "requests") == 1


def test_paginators_and_waiters_are_limited(s3_api: S3, limiter: Limiter) -> None:
    client = throttled(client_of("s3", s3_api), limiter["requests"])
    client.get_waiter("object_exists").wait(Bucket="b", Key="k")
    assert taken(limiter, "requests") == 1


def test_capacity_units_settle(dynamodb_api: DynamoDB, limiter: Limiter) -> None:
    client = throttled(
        client_of("dynamodb", dynamodb_api), {"capacity_units": limiter["units"]}, cost=40
    )
    get(client, 5.5, ReturnConsumedCapacity="TOTAL")
    assert taken(limiter, "units") == pytest.approx(6, abs=1)
    get(client, 5.5)  # it does not say: the estimate counts
    assert taken(limiter, "units") == pytest.approx(46, abs=1)


def test_the_capacity_is_used_and_nothing_is_refused(limiter: Limiter) -> None:
    api = DynamoDB({"capacity_units": 52 * 60}, burst=0.05)
    client = throttled(client_of("dynamodb", api), limiter["slow"], max_wait=10)
    for _ in range(50):
        get(client)
    api.close()
    assert api.statuses() == [200] * 50


def test_a_refusal_of_dynamodb(dynamodb_api: DynamoDB, limiter: Limiter) -> None:
    dynamodb_api.replies = [error_of_dynamodb("ProvisionedThroughputExceededException")]
    client = throttled(client_of("dynamodb", dynamodb_api), limiter["requests"])
    assert get(client)["Item"] == {"units": {"N": "1"}}
    assert dynamodb_api.statuses() == [400, 200]


def test_an_error_of_the_request_is_no_refusal(dynamodb_api: DynamoDB, limiter: Limiter) -> None:
    dynamodb_api.replies = [error_of_dynamodb("ResourceNotFoundException")]
    client = throttled(client_of("dynamodb", dynamodb_api), limiter["requests"])
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        get(client)
    assert limiter["requests"].peek().allowed


def test_an_object_that_is_not_modified(s3_api: S3, limiter: Limiter) -> None:
    s3_api.replies = [Reply(304, b"")]
    client = throttled(client_of("s3", s3_api), {"tokens": limiter["units"]})
    with pytest.raises(ClientError, match="Not Modified"):
        client.head_object(Bucket="b", Key="k", IfNoneMatch="x")


def test_an_answer_that_is_none_of_aws(dynamodb_api: DynamoDB, limiter: Limiter) -> None:
    dynamodb_api.replies = [Reply(400, b"<html>")]
    client = throttled(client_of("dynamodb", dynamodb_api), limiter["requests"])
    with pytest.raises(ClientError):
        get(client)


def test_a_slot_is_held_until_the_body_was_read_or_closed(s3_api: S3, limiter: Limiter) -> None:
    client = throttled(client_of("s3", s3_api), limiter["pool"])
    first, second = (client.get_object(Bucket="b", Key="k")["Body"] for _ in range(2))
    with pytest.raises(Throttled):
        client.get_object(Bucket="b", Key="k")
    for _ in first:
        pass
    second.close()
    client.head_object(Bucket="b", Key="k")
    client.head_object(Bucket="b", Key="k")
    client.head_object(Bucket="b", Key="k")


def test_the_usage_of_a_stream_of_bedrock(limiter: Limiter) -> None:
    api = S3({"requests": 60_000})
    usage = {"usage": {"inputTokens": 10, "outputTokens": 20, "totalTokens": 30}, "metrics": {}}
    events = event("contentBlockDelta", {"delta": {"text": "hi"}, "contentBlockIndex": 0})
    events += event("metadata", usage)
    api.replies = [Reply(200, events, {"Content-Type": "application/vnd.amazon.eventstream"})]
    client = throttled(client_of("bedrock-runtime", api), {"tokens": limiter["units"]})
    message = {"role": "user", "content": [{"text": "hello"}]}
    answer = client.converse_stream(
        modelId="m", messages=[message], inferenceConfig={"maxTokens": 80}
    )
    assert taken(limiter, "units") > 80
    assert [next(iter(one)) for one in answer["stream"]] == ["contentBlockDelta", "metadata"]
    assert taken(limiter, "units") == pytest.approx(30, abs=1)
    api.close()


def test_an_event_of_a_stream_that_is_malformed_is_passed_on(limiter: Limiter) -> None:
    api = S3({"requests": 60_000})
    headers = {"Content-Type": "application/vnd.amazon.eventstream"}
    api.replies = [Reply(200, event("metadata", b"{"), headers)]
    client = throttled(client_of("bedrock-runtime", api), {"tokens": limiter["units"]})
    message = {"role": "user", "content": [{"text": "hello"}]}
    answer = client.converse_stream(modelId="m", messages=[message])
    assert [*answer["stream"]] == [{"metadata": {}}]
    api.close()


def event(name: str, payload: dict[str, Any] | bytes) -> bytes:
    """Return an event in AWS's binary form."""
    fields = {":message-type": "event", ":event-type": name, ":content-type": "application/json"}
    headers = b"".join(
        pack(">B", len(key)) + key.encode() + pack(">BH", 7, len(text)) + text.encode()
        for key, text in fields.items()
    )
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    prelude = pack(">II", 16 + len(headers) + len(body), len(headers))
    prelude += pack(">I", crc32(prelude))
    message = prelude + headers + body
    return message + pack(">I", crc32(message))


def test_a_handler_that_answers_in_place_of_aws_takes_nothing(s3_api: S3, limiter: Limiter) -> None:
    """So does moto."""

    class Raw(io.BytesIO):
        def stream(self) -> Iterator[bytes]:
            yield self.read()

    plain = client_of("s3", s3_api)
    client = throttled(plain, limiter["requests"])
    plain.meta.events.register(
        "before-send.s3", lambda request, **_: AWSResponse(request.url, 200, {}, Raw(b""))
    )
    client.put_object(Bucket="b", Key="k", Body=b"text")
    assert taken(limiter, "requests") == 0
    assert s3_api.log == []


def test_an_error_of_boto3_is_read_by_its_code() -> None:
    error = ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {}}, "PutObject")
    assert read(AWS, of_error(error), 0).meaning is Meaning.REFUSAL
