from __future__ import annotations

import ssl
from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttle
from celery_throttle.store.topology import Nodes, Sentinels
from celery_throttle.store.url import read_url


def queue_of(**settings: Any) -> str:
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(settings)
        return Throttle(app, {}).qualify("mail")


@pytest.mark.parametrize(
    ("broker", "queue"),
    [
        ("redis://", "redis/0/mail"),
        ("redis://user:password@one:1//", "redis/0/mail"),
        ("rediss://two/01", "redis/1/mail"),
        ("sentinel://one:1/1;sentinel://two:1/1", "redis/1/mail"),
        (["redis://one/1", "redis://two/1"], "redis/1/mail"),
        ("redis+socket:///run/a.sock", "redis/0/mail"),
        ("redis+socket:///run/a.sock?virtual_host=1", "redis/1/mail"),
        ("amqp://", "amqp/%2F/mail"),
        ("amqp://user:password@one:1//", "amqp/%2F/mail"),
        ("pyamqp://one/shop", "amqp/shop/mail"),
        ("amqps://two/shop", "amqp/shop/mail"),
        ("amqp://one/%2Fshop/a", "amqp/%2Fshop%2Fa/mail"),
        ("memory://", "memory/%2F/mail"),
    ],
)
def test_a_queue_is_named_with_its_broker_whatever_its_host(broker: Any, queue: str) -> None:
    assert queue_of(broker_url=broker) == queue


def test_a_queue_is_named_with_the_prefix_of_its_broker() -> None:
    options = {"global_keyprefix": "shop/1+:"}
    queue = queue_of(broker_url="redis://one/1", broker_transport_options=options)
    assert queue == "redis/1+shop%2F1%2B%3A/mail"


def test_a_queue_is_named_with_the_broker_that_workers_consume_from() -> None:
    queue = queue_of(broker_write_url="amqp://one/in", broker_read_url="amqp://two/out")
    assert queue == "amqp/out/mail"


def url_of(**settings: Any) -> str:
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(settings)
        return Throttle(app, {}).settings.url


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis://:p@host:1/2", "redis://:p@host:1/2"),
        ("redis://one;redis://two", "redis://one"),
        (["redis://one", "redis://two"], "redis://one"),
        ("redis+socket:///run/a.sock?virtual_host=2", "unix:///run/a.sock?db=2"),
        ("redis+socket://:p@/run/a.sock", "unix://:p@/run/a.sock"),
    ],
)
def test_one_server(broker: Any, url: str) -> None:
    assert url_of(broker_url=broker) == url


def test_the_server_that_workers_read_from() -> None:
    assert url_of(broker_url="amqp://", broker_read_url="redis://host") == "redis://host"


def test_the_environment_beats_the_settings_as_in_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://there")
    assert url_of(broker_url="redis://here") == "redis://there"


TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/a b", "ssl_keyfile": None}


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_tls(scheme: str) -> None:
    url = url_of(broker_url=f"{scheme}://host/1?socket_timeout=1", broker_use_ssl=TLS)
    servers = read_url(url, 5)
    assert isinstance(servers, Nodes)
    (address,) = servers._nodes
    assert address.kind == "tls"
    expected = {"ssl_cert_reqs": "required", "ssl_ca_certs": "/a b", "db": 1, "socket_timeout": 1}
    assert {name: address.options.get(name) for name in expected} == expected
    assert "ssl_keyfile" not in address.options


def watched(**settings: Any) -> Sentinels:
    servers = read_url(url_of(**settings), 5)
    assert isinstance(servers, Sentinels)
    return servers


@pytest.mark.parametrize(
    "broker",
    [
        "sentinel://u:p%3B@one:1/3;sentinel://u:p%3B@two:2/3;sentinel://three",
        ["sentinel://u:p%3B@one:1/3", "sentinel://two:2", "sentinel://three"],
    ],
)
def test_sentinels(broker: Any) -> None:
    options = {"master_name": "my/master", "sentinel_kwargs": {"password": "s&", "retry": object()}}
    servers = watched(broker_url=broker, broker_transport_options=options)
    assert [str(address) for address in servers._sentinels] == ["one:1", "two:2", "three:26379"]
    assert servers._name == "my/master"
    expected = {"username": "u", "password": "p;", "db": 3}
    assert {name: servers._master.options.get(name) for name in expected} == expected
    assert [address.options["password"] for address in servers._sentinels] == ["s&"] * 3


@pytest.mark.parametrize(
    ("tls", "own", "kinds"),
    [
        (None, {}, ("tcp", "tcp")),
        (TLS, {}, ("tls", "tcp")),
        (TLS, {"ssl": True}, ("tls", "tls")),
        (None, {"ssl": True}, ("tcp", "tls")),
    ],
)
def test_tls_of_a_master_and_of_its_sentinels(
    tls: Any, own: dict[str, Any], kinds: tuple[str, str]
) -> None:
    servers = watched(
        broker_url="sentinel://one/0",
        broker_use_ssl=tls,
        broker_transport_options={"master_name": "m", "sentinel_kwargs": own},
    )
    assert (servers._master.kind, servers._sentinels[0].kind) == kinds


def test_sentinels_of_nobody_knows_which_master() -> None:
    with pytest.raises(ConfigurationError, match="master_name") as caught:
        url_of(broker_url="sentinel://:s3cret@one/0")
    assert "s3cret" not in str(caught.value)
