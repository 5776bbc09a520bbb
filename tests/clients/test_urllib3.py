"""Pool managers of urllib3: what they do on their own is limited too."""

from __future__ import annotations

from typing import Any

import pytest
import urllib3

from celery_throttle import Limiter, Throttled, throttled
from celery_throttle.clients.urllib3 import Urllib3Request
from tests.clients.api import Answer, Api

LIMITS = {"api": "1000/d burst 5"}


def taken(limiter: Limiter) -> float:
    return 5 - limiter["api"].peek(0).remaining


def test_a_redirect_takes_a_unit(api: Api, limiter: Limiter) -> None:
    api.answers = [Answer(302, {"Location": "/there"})]
    manager = throttled(urllib3.PoolManager(), limiter["api"])
    assert manager.request("GET", api.url).status == 200
    assert api.paths == ["/", "/there"]
    assert taken(limiter) == 2


def test_each_repeat_takes_a_unit(api: Api, limiter: Limiter) -> None:
    api.answers = [Answer(500), Answer(500)]
    plain = urllib3.PoolManager(retries=urllib3.Retry(3, status_forcelist=[500]))
    manager = throttled(plain, limiter["api"])
    assert manager.request("GET", api.url).status == 200
    assert (len(api.paths), taken(limiter)) == (3, 3)


@pytest.mark.parametrize("status", [429, 503])
def test_urllib3_does_not_wait_for_what_was_refused(
    api: Api, limiter: Limiter, status: int
) -> None:
    api.answers = [Answer(status, {"Retry-After": "30"})]
    retries = urllib3.Retry(3, status_forcelist=[429, 503])
    manager = throttled(urllib3.PoolManager(), limiter["api"], retry_refused=0)
    assert manager.request("GET", api.url, retries=retries).status == status
    assert len(api.paths) == 1
    with pytest.raises(Throttled):
        manager.request("GET", api.url)


def test_the_other_manager_stays_as_it_is(api: Api, limiter: Limiter) -> None:
    plain = urllib3.PoolManager(headers={"User-Agent": "me"})
    plain.request("GET", api.url)
    manager = throttled(plain, limiter["api"])
    manager.request("GET", api.url)
    plain.request("GET", api.url)
    assert taken(limiter) == 1
    assert manager.headers == {"User-Agent": "me"}


def test_limits_are_a_function_of_the_request(api: Api, limiter: Limiter) -> None:
    seen: list[Urllib3Request] = []

    def limit_of(request: Urllib3Request) -> Any:
        seen.append(request)
        return limiter["api"]

    throttled(urllib3.PoolManager(), limit_of).request("POST", f"{api.url}/a?b=1", body=b"text")
    assert (seen[0].method, seen[0].host, seen[0].path) == ("POST", "127.0.0.1", "/a?b=1")
    assert seen[0].body == b"text"


def test_a_connection_that_was_not_allowed_is_not_lost(api: Api, limiter: Limiter) -> None:
    manager = throttled(urllib3.PoolManager(maxsize=1, block=True), limiter["api"])
    for _ in range(5):
        manager.request("GET", api.url)
    for _ in range(3):
        with pytest.raises(Throttled):
            manager.request("GET", api.url, pool_timeout=1)
    assert len(api.paths) == 5


def refusal() -> Answer:
    return Answer(429, {"Retry-After": "0.05"}, b"refused")


def test_a_connection_serves_nobody_else_until_it_has_sent_a_streamed_request_again(
    api: Api, limiter: Limiter
) -> None:
    api.answers = [refusal(), refusal(), Answer(body=b"at last")]
    manager = throttled(urllib3.PoolManager(maxsize=1, block=True), limiter["api"])
    pool = manager.connection_from_url(api.url)
    answer = manager.request("GET", api.url, preload_content=False)
    with pytest.raises(urllib3.exceptions.EmptyPoolError):
        pool.request("GET", "/", pool_timeout=0.01)
    assert (answer.status, answer.read()) == (200, b"at last")
    assert pool.request("GET", "/", pool_timeout=1).status == 200
    assert pool.num_connections == 1


def test_a_refusal_that_is_not_repeated_is_read_and_gives_its_connection_back(
    api: Api, limiter: Limiter
) -> None:
    api.answers = [refusal()]
    plain = urllib3.PoolManager(maxsize=1, block=True)
    manager = throttled(plain, limiter["api"], retry_refused=0, max_wait=1)
    answer = manager.request("GET", api.url, preload_content=False)
    assert manager.request("GET", api.url, pool_timeout=1).status == 200
    assert (answer.status, answer.read()) == (429, b"refused")


def test_a_request_that_is_shown_has_no_secrets() -> None:
    request = Urllib3Request("GET", "host", "/", {"authorization": "s3cret"}, b"s3cret")
    assert repr(request) == "Urllib3Request(method='GET', host='host', path='/')"
