from __future__ import annotations

import math
import re
from typing import Any

import pytest

from celery_throttle import ConfigurationError
from celery_throttle.store.connection import Address
from celery_throttle.store.topology import Nodes, Sentinels
from celery_throttle.store.url import is_store_url, read_url, safe_url


def options(address: Address, *names: str) -> dict[str, Any]:
    return {name: address.options[name] for name in names if name in address.options}


def node(url: str) -> Address:
    servers = read_url(url, 5)
    assert isinstance(servers, Nodes)
    (address,) = servers._nodes
    return address


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        ("redis://host/3", "tcp", {"host": "host", "db": 3}),
        ("valkey://host:7000?db=3", "tcp", {"host": "host", "port": 7000, "db": 3}),
        ("rediss://u:p%40@host", "tls", {"username": "u", "password": "p@"}),
        ("valkeys://:p@[::1]:1", "tls", {"host": "::1", "port": 1, "password": "p"}),
        ("unix:///run/a.sock?db=2", "unix", {"path": "/run/a.sock", "db": 2}),
        ("unix://u:p@/run/a.sock", "unix", {"username": "u", "password": "p"}),
        ("unix:///run/a@b.sock", "unix", {"path": "/run/a@b.sock"}),
    ],
)
def test_one_server(url: str, kind: str, expected: dict[str, Any]) -> None:
    address = node(url)
    assert address.kind == kind
    assert options(address, *expected) == expected


def test_time_outs_are_ours_unless_the_url_says() -> None:
    names = ("socket_timeout", "socket_connect_timeout")
    address = node("redis://host?socket_timeout=0.5")
    assert options(address, *names) == {"socket_timeout": 0.5, "socket_connect_timeout": 5}


def test_what_is_for_a_pool_or_another_protocol_does_not_count() -> None:
    address = node("redis://host?max_connections=1&protocol=3")
    assert options(address, "max_connections", "protocol") == {"protocol": 2}


@pytest.mark.parametrize("text", ["required", "CERT_REQUIRED"])
def test_tls_as_celery_writes_it(text: str) -> None:
    address = node(f"rediss://host?ssl_cert_reqs={text}")
    assert options(address, "ssl_cert_reqs") == {"ssl_cert_reqs": "required"}


def test_a_cluster() -> None:
    servers = read_url("rediss+cluster://u:p@one:7000,two,[::1]:7002?ssl_ca_certs=/ca", 5)
    assert isinstance(servers, Nodes)
    assert [str(address) for address in servers._nodes] == ["one:7000", "two:6379", "::1:7002"]
    for address in servers._nodes:
        assert address.kind == "tls"
        expected = {"username": "u", "password": "p", "ssl_ca_certs": "/ca"}
        assert options(address, *expected) == expected


def watched(url: str) -> Sentinels:
    servers = read_url(url, 5)
    assert isinstance(servers, Sentinels)
    return servers


def test_sentinels() -> None:
    servers = watched("redis+sentinel://u:p@one,two:7000/my%20master/3?socket_timeout=1")
    assert [str(address) for address in servers._sentinels] == ["one:26379", "two:7000"]
    assert servers._name == "my master"
    expected = {"username": "u", "password": "p", "db": 3, "socket_timeout": 1}
    assert options(servers._master, *expected) == expected
    for address in servers._sentinels:
        assert address.kind == "tcp"
        assert options(address, *expected) == {"socket_timeout": 1}


def test_sentinels_with_a_password() -> None:
    servers = watched("redis+sentinel://one/m?sentinel_username=u&sentinel_password=p%26")
    (address,) = servers._sentinels
    assert options(address, "username", "password") == {"username": "u", "password": "p&"}
    assert options(servers._master, "username", "password") == {}


@pytest.mark.parametrize(
    ("scheme", "query", "kinds", "authorities"),
    [
        ("redis", "", ("tcp", "tcp"), (None, None)),
        ("rediss", "ssl_ca_certs=a", ("tls", "tls"), ("a", "a")),
        ("rediss", "ssl_ca_certs=a&sentinel_ssl_ca_certs=b", ("tls", "tls"), ("a", "b")),
        ("rediss", "ssl_ca_certs=a&sentinel_ssl=no", ("tls", "tcp"), ("a", None)),
        ("redis", "sentinel_ssl=True&sentinel_ssl_ca_certs=b", ("tcp", "tls"), (None, "b")),
    ],
)
def test_tls_of_a_master_and_of_its_sentinels(
    scheme: str, query: str, kinds: tuple[str, str], authorities: tuple[str | None, str | None]
) -> None:
    servers = watched(f"{scheme}+sentinel://one/m?{query}")
    both = (servers._master, servers._sentinels[0])
    assert tuple(address.kind for address in both) == kinds
    assert tuple(address.options.get("ssl_ca_certs") for address in both) == authorities


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://one:26379", "must name the master"),
        ("redis+sentinel://u:s3cret@one:26379/", "must name the master"),
        ("redis+cluster://one:7000/1", "only database 0"),
        ("redis+cluster://one:port", "port"),
        ("redis+cluster://u:s3/cret@one", "percent-encoded"),
        ("redis+cluster://u:s3?cret@one", "percent-encoded"),
        ("redis+sentinel://u:s3/cret@one/m", "percent-encoded"),
        ("redis+sentinel://one/m?sentinel_nonsense=1", "nonsense"),
        ("redis+sentinel://one/m?ssl_ca_certs=a", "ssl_ca_certs"),
        ("unix+sentinel://one/m", "must start with one of"),
        ("sentinel://one/0", r"must start with one of .*redis\+sentinel://"),
        ("rediss://host?ssl_cert_reqs=perhaps", "perhaps"),
        ("redis://one..two", "label"),
        (f"redis+cluster://one,{'x' * 64}", "label"),
        ("redis://host/abc", "its database 'abc' is not a number"),
        ("redis+sentinel://one/m/abc", "its database 'abc' is not a number"),
        ("redis://u:s3cret@host?sockt_timeout=2", "sockt_timeout"),
        ("redis://host?maint_notifications_config=1", "object|maint_notifications_config"),
        ("redis://host?socket_timeout=0", "socket_timeout is 0.0; allowed: seconds from 0.01 to"),
        ("redis://host?socket_connect_timeout=nan", "socket_connect_timeout is nan"),
        ("redis+sentinel://one/m?sentinel_socket_timeout=-1", "socket_timeout is -1.0"),
        ("redis://u:s3cret@host?socket_timeout=inf", "socket_timeout is inf"),
        ("redis://u:s3?cret=1@host", "percent-encoded"),
        ("redis://u:x/s3?cret=1@host", "percent-encoded"),
        # Of these, urllib takes a part of the password for the port of another host.
        ("redis://:12/s3cret@host:6379/0", "percent-encoded"),
        ("redis://:12#s3cret@host:6379/0", "percent-encoded"),
        ("redis://:12?s3cret@host:6379/0", "percent-encoded"),
        ("rediss+cluster://:12/s3cret@host", "percent-encoded"),
        ("redis+sentinel://:12#s3cret@host/m", "percent-encoded"),
        ("unix://u:s3/cret@/run/redis.sock", "percent-encoded"),
    ],
)
def test_what_cannot_be_used(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        read_url(url, 5)
    assert not any(secret in str(caught.value) for secret in ("s3", "cret@"))


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, math.inf, "1"])
def test_a_timeout_that_no_socket_can_have(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"socket_timeout is .*; allowed: seconds from"):
        read_url("redis://host", timeout)


def test_a_url_without_its_secrets() -> None:
    url = "redis+sentinel://u:s3cret@one,two:1/m/0?sentinel_password=s3cret"
    assert safe_url(url) == "redis+sentinel://one,two:1/m/0"
    assert is_store_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host/0?password=s3@s3cret",
        "redis://user:s3cret@host?password=s3@s3cret",
        "rediss+sentinel://host/m?sentinel_password=s3@s3cret",
        "unix:///run/a.sock?password=s3@s3cret",
        "redis://user:s3cret?x=1@host",
        "redis://user:s3cret?1@host",
    ],
)
def test_a_url_that_is_shown_has_no_secrets(url: str) -> None:
    assert "s3cret" not in safe_url(url)


def test_an_address_that_is_shown_has_no_secrets() -> None:
    assert "s3cret" not in f"{node('redis://:s3cret@host')!r} {node('redis://:s3cret@host')}"


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("localhost:6379", "redis://localhost:6379"),
        ("redis.internal", "redis://redis.internal"),
        ("10.0.0.5:6379/1", "redis://10.0.0.5:6379/1"),
        ("user:secret@localhost:6379/1", "redis://localhost:6379/1"),
        ("redis:/localhost:6379", "redis://localhost:6379"),
        ("redis//localhost", "redis://localhost"),
        ("REDIS://localhost:6379", "redis://localhost:6379"),
        (" redis://localhost", "redis://localhost"),
        ("http://user:secret@host:6379", None),
        ("amqp://user:secret@host//", None),
        ("", None),
        (6379, None),
    ],
)
def test_a_url_that_does_not_begin_as_it_must(url: Any, meant: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"must start with one of redis://") as caught:
        read_url(url, 5)
    _, _, told = str(caught.value).partition("; write ")
    assert told == ("" if meant is None else repr(meant))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("redis://host:port", "port"),
        ("redis://user:secret@host:$PORT/0", "$PORT"),
        ("redis://host:6379:1", "6379:1"),
        ("redis://host:99999", "99999"),
        ("redis://host:0/1", "0"),
        ("redis://[::1]:x", "x"),
        ("redis+cluster://one:7000,two:x", "x"),
        ("redis+sentinel://one:26379,two:x/mymaster", "x"),
    ],
)
def test_a_port_that_is_no_number(url: str, port: str) -> None:
    told = re.escape(f"its port {port!r} is not a number from 1 to 65535; write it as in 'redis://")
    with pytest.raises(ConfigurationError, match=told) as caught:
        read_url(url, 5)
    assert "secret" not in str(caught.value)
