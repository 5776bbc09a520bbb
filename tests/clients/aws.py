"""Services of AWS that enforce rates as documented, each for the client of boto3."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any

import boto3
from botocore.config import Config

from tests.clients.vendors import Reply, Vendor


def client_of(service: str, api: Vendor, kind: Any = boto3.client, **retries: Any) -> Any:
    """Return a client, or a resource, whose requests go to a server here."""
    return kind(
        service,
        endpoint_url=api.url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",  # noqa: S106
        config=Config(retries=retries or None, s3={"addressing_style": "path"}),
    )


class S3(Vendor):
    """Buckets with one object. Above the rate of requests it answers 503 SlowDown."""

    def request_of(self, http: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:
        return {"method": http.command, "path": http.path, "body": body}

    def charges(self, request: dict[str, Any]) -> dict[str, float]:  # noqa: ARG002
        return {"requests": 1}

    def refusal(self, name: str, wait: float) -> Reply:  # noqa: ARG002
        return error_of_s3(503, "SlowDown")

    def success(self, request: dict[str, Any]) -> Reply:
        is_get = request["method"] == "GET"
        return Reply(200, b"content " * 10_000 if is_get else b"", {"Content-Type": "text/plain"})


def error_of_s3(status: int, code: str) -> Reply:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'
    return Reply(status, body.encode(), {"Content-Type": "application/xml"})


class DynamoDB(Vendor):
    """A table whose items are read. The key says how many capacity units an item has.

    Above the capacity it answers 400 with ProvisionedThroughputExceededException.
    """

    def charges(self, request: dict[str, Any]) -> dict[str, float]:
        return {"capacity_units": self.units(request)}

    @staticmethod
    def units(request: dict[str, Any]) -> float:
        return float(request["Key"]["units"]["N"])

    def refusal(self, name: str, wait: float) -> Reply:  # noqa: ARG002
        return error_of_dynamodb("ProvisionedThroughputExceededException")

    def success(self, request: dict[str, Any]) -> Reply:
        body: dict[str, Any] = {"Item": request["Key"]}
        if request.get("ReturnConsumedCapacity") == "TOTAL":
            consumed = {"TableName": request["TableName"], "CapacityUnits": self.units(request)}
            body["ConsumedCapacity"] = consumed
        return Reply(200, body, {"Content-Type": "application/x-amz-json-1.0"})


def error_of_dynamodb(code: str) -> Reply:
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    return Reply(
        400, {"__type": kind, "message": "no"}, {"Content-Type": "application/x-amz-json-1.0"}
    )
