"""Key functions, on requests of hostile clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.errors import ConfigurationError, KeyValueError
from celery_throttle.inbound import by_address, by_header, by_parts, by_route, by_user
from celery_throttle.limits.key import encode_key
from tests.inbound.sites import HERE, Asked

Read = Callable[[Any, Asked], Any]


@pytest.fixture(params=["environ", "scope"])
def read(request: pytest.FixtureRequest) -> Read:
    """Apply a key function to a request, as an environ or a scope."""

    def apply(key: Any, asked: Asked) -> Any:
        return key(getattr(asked, request.param)())

    return apply


def forwarded(*values: str, address: str = HERE) -> Asked:
    return Asked(headers=[("X-Forwarded-For", value) for value in values], address=address)


# Addresses


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("testclient", "unknown"),
    ],
)
def test_addresses(read: Read, address: str, key: str) -> None:
    assert read(by_address(), Asked(address=address)) == key


def test_no_address_at_all() -> None:
    assert by_address()({"REQUEST_METHOD": "GET"}) == "unknown"
    assert by_address()({"type": "http", "client": None, "headers": []}) == "unknown"


def test_ipv6_networks_may_be_larger_or_single_addresses(read: Read) -> None:
    asked = Asked(address="2001:db8:1:2::1")
    assert read(by_address(ipv6_prefix=48), asked) == "2001:db8:1::/48"
    assert read(by_address(ipv6_prefix=128), asked) == "2001:db8:1:2::1/128"


def test_the_header_of_proxies_is_not_trusted_by_itself(read: Read) -> None:
    assert read(by_address(), forwarded("198.51.100.1")) == HERE


@pytest.mark.parametrize(
    ("proxies", "values", "key"),
    [
        (1, ["198.51.100.1"], "198.51.100.1"),
        (1, ["10.9.9.9, 10.8.8.8, 198.51.100.1"], "198.51.100.1"),  # the first two are forged
        (1, ["10.9.9.9", "198.51.100.1"], "198.51.100.1"),
        (2, ["10.9.9.9, 198.51.100.1, 192.0.2.1"], "198.51.100.1"),
        (2, ["198.51.100.1"], HERE),  # it did not come through both
        (1, [], HERE),
        (1, [""], HERE),
        (1, ["198.51.100.1,"], HERE),
        (1, ["10.9.9.9, 198.51.100.1:4711"], "198.51.100.1"),
        (1, ["[2001:db8::1]:4711"], "2001:db8::/64"),
        (1, ["2001:db8::1"], "2001:db8::/64"),
        (1, ["not an address"], "unknown"),
        (1, ["x" * 100_000], "unknown"),
        (1, ["," * 100_000 + "198.51.100.1"], "198.51.100.1"),
    ],
)
def test_what_ones_own_proxies_wrote_counts(
    read: Read, proxies: int, values: list[str], key: str
) -> None:
    assert read(by_address(proxies=proxies), forwarded(*values)) == key


def test_forged_addresses_give_no_new_keys(read: Read) -> None:
    key = by_address(proxies=1)
    forged = [forwarded(f"10.0.0.{number}, 198.51.100.1") for number in range(20)]
    assert {read(key, asked) for asked in forged} == {"198.51.100.1"}


# Headers


def test_headers(read: Read) -> None:
    key = by_header("X-Api-Key")
    assert read(key, Asked(headers=[("x-api-key", " secret ")])) == "secret"
    assert read(by_header("Content-Type"), Asked(more={"CONTENT_TYPE": "a/b"})) in (
        "a/b",
        ("anonymous", HERE),
    )


@pytest.mark.parametrize(
    "headers",
    [[], [("X-Api-Key", "")], [("X-Api-Key", "  ")], [("X-Other", "secret")]],
)
def test_who_leaves_a_header_off_goes_by_the_address(read: Read, headers: Any) -> None:
    assert read(by_header("X-Api-Key"), Asked(headers=headers)) == ("anonymous", HERE)


def test_a_header_that_is_sent_twice_gives_no_key_of_its_own() -> None:
    # An app takes the first, and would be asked with another second one each time.
    asked = Asked(headers=[("X-Api-Key", "good"), ("X-Api-Key", "random")])
    assert by_header("X-Api-Key")(asked.scope()) == ("anonymous", HERE)


def test_only_valid_values_count(read: Read) -> None:
    key = by_header("X-Api-Key", valid={"good"}.__contains__)
    assert read(key, Asked(headers=[("X-Api-Key", "good")])) == "good"
    assert read(key, Asked(headers=[("X-Api-Key", "bad")])) == ("anonymous", HERE)


def test_no_header_is_the_key_of_an_address(read: Read) -> None:
    key = by_header("X-Api-Key")
    without = encode_key(read(key, Asked()))
    for value in (HERE, f"anonymous:{HERE}", f"('anonymous', '{HERE}')"):
        assert encode_key(read(key, Asked(headers=[("X-Api-Key", value)]))) != without


def test_what_counts_without_a_header(read: Read) -> None:
    assert read(by_header("X", otherwise=lambda _: "shared"), Asked()) == ("anonymous", "shared")
    assert read(by_header("X", otherwise=lambda _: None), Asked()) is None


# Users


def user(**attributes: Any) -> dict[str, Any]:
    return {"user": SimpleNamespace(**attributes)}


def test_users_of_a_scope() -> None:
    assert by_user()(Asked(more=user(pk=7, username="ann")).scope()) == 7
    assert by_user()(Asked(more=user(username="ann", is_authenticated=True)).scope()) == "ann"
    anonymous = user(username="", is_authenticated=False)
    assert by_user()(Asked(more=anonymous).scope()) == ("anonymous", HERE)
    assert by_user()(Asked().scope()) == ("anonymous", HERE)
    assert by_user()(Asked(more={"user": "ann"}).scope()) == "ann"


def test_users_of_an_environ() -> None:
    assert by_user()(Asked(more={"REMOTE_USER": "ann"}).environ()) == "ann"
    assert by_user()(Asked(more={"REMOTE_USER": ""}).environ()) == ("anonymous", HERE)


def test_users_of_requests_of_views() -> None:
    environ = Asked().environ()
    request = SimpleNamespace(META=environ, user=SimpleNamespace(pk=None, id=3))
    assert by_user()(request) == 3
    with pytest.raises(KeyValueError, match="user without pk, id, username"):
        by_user()(SimpleNamespace(META=environ, user=object()))


@pytest.mark.parametrize("key", [by_address(), by_header("X"), by_user(), by_route("/")])
def test_what_is_no_request_is_said(key: Any) -> None:
    for wrong in (object(), {}, 42, SimpleNamespace(META=3)):
        with pytest.raises(KeyValueError, match="is no request; allowed"):
            key(wrong)


# Routes, and several together


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        (Asked("/search"), "/search"),
        (Asked("/search/more"), "other"),
        (Asked("/orders/1/items"), "/orders/*"),
        (Asked("/login"), "other"),
        (Asked("/login", method="POST"), "POST /login"),
        (Asked("/søk"), "/søk"),
        (Asked("/f/[id]"), "/f/[id]"),
        (Asked("/f/i"), "other"),
        (Asked("/v?/1"), "/v?/*"),
        (Asked("/v2/1"), "other"),
    ],
)
def test_routes(read: Read, asked: Asked, key: str) -> None:
    routes = by_route("/search", "/orders/*", "POST /login", "/søk", "/f/[id]", "/v?/*")
    assert read(routes, asked) == key


def test_the_app_may_be_mounted_somewhere() -> None:
    asked = Asked("/search", more={"SCRIPT_NAME": "/shop"})
    assert by_route("/shop/search")(asked.environ()) == "/shop/search"


def test_other_routes_may_be_free(read: Read) -> None:
    assert read(by_route("/search", others=None), Asked("/health")) is None


def test_several_parts(read: Read) -> None:
    key = by_parts(by_header("X-Api-Key"), by_route("/search", others=None))
    assert read(key, Asked("/search")) == ("anonymous", HERE, "/search")
    assert read(key, Asked("/health")) is None


# Errors, and anything at all

NO_FUNCTION: Any = "text"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: by_address(proxies=-1), "proxies .* 0 to 100, not -1"),
        (lambda: by_address(proxies=True), "proxies .* not True"),
        (lambda: by_address(ipv6_prefix=129), "ipv6_prefix .* 1 to 128, not 129"),
        (lambda: by_header("X Api Key"), "'X Api Key' is no header"),
        (partial(by_header, "X", valid=NO_FUNCTION), "valid must be callable, not 'text'"),
        (partial(by_header, "X", otherwise=NO_FUNCTION), "otherwise must be callable, not 'text'"),
        (by_route, "no route"),
        (lambda: by_route("search"), "'search' is no route; allowed: such as"),
        (by_parts, "no key function"),
        (partial(by_parts, NO_FUNCTION), "must be callable, not 'text'"),
    ],
)
def test_what_is_wrong_is_said_at_once(make: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        make()


ANYTHING = st.text(st.characters(max_codepoint=255))


@given(header=ANYTHING, address=st.text(), path=st.text())
def test_nothing_a_client_sends_is_an_error(header: str, address: str, path: str) -> None:
    keys = (by_address(proxies=1), by_address(), by_header("X-Api-Key"), by_route("/a*"))
    sent = [("X-Api-Key", header), ("X-Forwarded-For", header)]
    environ = Asked(headers=sent, address=address).environ()
    environ["PATH_INFO"] = path
    scope = Asked(path, headers=sent, address=address).scope()
    for request in (environ, scope):
        assert len(encode_key(by_parts(*keys)(request))) <= 80
