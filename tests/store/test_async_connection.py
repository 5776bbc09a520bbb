"""Calls of an event loop: other work in it is no outage, and they share one connection."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from celery_throttle import ConfigurationError, Limiter, StoreUnavailableError
from celery_throttle.store import breaker as breaker_module
from tests.servers.server import Server, wait_until

CALLS = 300
LIMITS = {"api": f"1/h burst {CALLS}", "fast": "200/s burst 1"}


@pytest.fixture(autouse=True)
def each_call_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The circuit breaker stays open, as for users, so a failed call fails all others."""
    monkeypatch.setattr(breaker_module, "RETRY_SECONDS", 1000)


def run(server: Server, main: Callable[[Limiter], Awaitable[Any]], **options: Any) -> Any:
    """Run a coroutine with a limiter; the result, and the number of connections opened."""

    async def body() -> Any:
        limiter = Limiter(server.url, LIMITS, **options)
        try:
            return await main(limiter)
        finally:
            await limiter.store.aclose()

    before = count_connections(server)
    result = asyncio.run(body())
    return result, count_connections(server) - before - 1


def count_connections(server: Server) -> int:
    """Return how many connections were opened up to this one, which the server accepts last."""
    with redis.Redis.from_url(server.url) as client:
        info: Any = client.info("stats")
    return int(info["total_connections_received"])


def command(server: Server, *words: Any) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command(*words)


def begin(limiter: Limiter, calls: int) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(limiter["api"].atry_acquire()) for _ in range(calls)]


def work(seconds: float) -> None:
    """Other work of the loop, without an await."""
    time.sleep(seconds)


async def used(limiter: Limiter) -> float:
    return CALLS - (await limiter["api"].apeek(0)).remaining


@pytest.mark.parametrize("timeout", [1.0, 0.5])
@pytest.mark.parametrize("connected", [True, False])
def test_calls_survive_other_work_in_their_loop(
    own_server: Server, *, connected: bool, timeout: float
) -> None:
    async def main(limiter: Limiter) -> int:
        if connected:
            await limiter["api"].apeek()
        calls = begin(limiter, CALLS)
        await asyncio.sleep(0)  # they have begun
        work(1.5)
        decisions = await asyncio.gather(*calls)
        assert not limiter.store.breaker.is_open
        assert not await limiter["api"].atry_acquire()
        return sum(map(bool, decisions))

    assert run(own_server, main, timeout=timeout) == (CALLS, 1)


@pytest.mark.thorough
def test_a_loop_that_is_always_busy_connects(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        (call,) = begin(limiter, 1)
        while not call.done():
            work(0.1)
            await asyncio.sleep(0)
        assert call.result().allowed

    run(own_server, main, timeout=0.2)


def test_300_calls_wait_for_their_limit_on_one_connection(own_server: Server) -> None:
    async def main(limiter: Limiter) -> float:
        fast = limiter["fast"]
        await fast.aacquire()
        began = time.monotonic()
        await asyncio.gather(*(fast.aacquire(max_wait=60) for _ in range(CALLS)))
        return time.monotonic() - began

    seconds, connections = run(own_server, main)
    assert seconds >= (CALLS - 1) / 200
    assert connections == 1


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_is_silent_is_an_outage(own_server: Server, *, connected: bool) -> None:
    async def main(limiter: Limiter) -> None:
        if connected:
            await limiter["api"].apeek()
        own_server.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            outcomes = await asyncio.gather(*begin(limiter, 20), return_exceptions=True)
            assert time.monotonic() - began >= 0.2
            assert {type(one) for one in outcomes} == {StoreUnavailableError}
            assert limiter.store.breaker.is_open
        finally:
            own_server.signal(signal.SIGCONT)

    _, connections = run(own_server, main, timeout=0.2)
    assert connections == 1


def test_a_cancelled_call_leaves_the_others_their_replies(own_server: Server) -> None:
    async def main(limiter: Limiter) -> int:
        await limiter["api"].apeek()
        calls = begin(limiter, 100)
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        decisions = await asyncio.gather(*calls, return_exceptions=True)
        remaining = [one.remaining for one in decisions if not isinstance(one, BaseException)]
        # Each has its own reply, and those of the cancelled calls are missing.
        assert remaining == [CALLS - 1 - index for index in range(100) if index % 3]
        assert await used(limiter) == 100
        return len(remaining)

    assert run(own_server, main) == (66, 1)


def test_a_call_that_is_cancelled_while_it_connects_leaves_that_to_the_next(
    own_server: Server,
) -> None:
    async def main(limiter: Limiter) -> None:
        calls = begin(limiter, 10)
        await asyncio.sleep(0)
        calls[0].cancel()
        decisions = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in decisions[:1]] == [asyncio.CancelledError]
        assert all(decisions[1:])
        assert await used(limiter) == 9

    run(own_server, main)


def test_a_connection_that_is_cut_fails_its_calls_and_repeats_none(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        await limiter["api"].atry_acquire()
        with redis.Redis.from_url(own_server.url) as client:
            client.execute_command("CLIENT", "PAUSE", 100_000, "WRITE")
            calls = begin(limiter, 20)
            await asyncio.sleep(0.05)  # the commands have left
            client.client_kill_filter(_type="normal", skipme=True)
            client.execute_command("CLIENT", "UNPAUSE")
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in outcomes} == {StoreUnavailableError}
        assert not limiter.store.breaker.is_open
        assert await used(limiter) == 1
        assert await limiter["api"].atry_acquire()

    run(own_server, main)


def test_scripts_that_the_server_lost_are_loaded_again(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        await limiter["api"].apeek()
        command(own_server, "SCRIPT", "FLUSH")
        assert all(await asyncio.gather(*begin(limiter, 50)))
        assert await used(limiter) == 50

    run(own_server, main)


def test_a_restarted_server_costs_no_call(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        await limiter["api"].apeek()
        own_server.stop()
        own_server.start()
        work(0.06)  # the connection is not fresh, and the loop has not seen its end
        assert all(await asyncio.gather(*begin(limiter, 50)))

    run(own_server, main)


def test_closing_waits_for_the_calls_under_way(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        await limiter["api"].apeek()
        calls = begin(limiter, 20)
        await asyncio.sleep(0)
        await limiter.store.aclose()
        assert all(await asyncio.gather(*calls))
        assert await limiter["api"].atry_acquire()  # on a new connection

    assert run(own_server, main) == (None, 2)


def test_closing_waits_for_a_call_whose_script_the_server_lost(own_server: Server) -> None:
    async def main(limiter: Limiter) -> None:
        await limiter["api"].apeek()
        command(own_server, "SCRIPT", "FLUSH")
        (call,) = begin(limiter, 1)
        await asyncio.sleep(0)
        await limiter.store.aclose()
        assert (await call).allowed

    run(own_server, main)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of loops that end without aclose()
def test_closing_waits_for_a_call_that_still_connects(own_server: Server) -> None:
    async def main(client: redis.Redis) -> None:
        limiter = Limiter(own_server.url, LIMITS)
        limiter["api"].try_acquire()  # so that the server has the script
        limiter.store.close()
        before = len(client.client_list())
        (call,) = begin(limiter, 1)
        await asyncio.sleep(0)
        assert limiter.store.connections._by_loop
        await limiter.store.aclose()
        assert (await call).allowed
        wait_until(lambda: len(client.client_list()) <= before, "a closed connection", 5)

    with redis.Redis.from_url(own_server.url) as client:
        asyncio.run(main(client))


def test_each_loop_has_a_connection_of_its_own(own_server: Server) -> None:
    limiter = Limiter(own_server.url, LIMITS)

    async def main() -> None:
        assert await limiter["api"].atry_acquire()

    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.run_until_complete(limiter.store.aclose())
        loop.close()
    for _ in range(3):
        asyncio.run(main())
    gc.collect()


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster", "rediss+sentinel"])
def test_an_option_that_only_blocking_connections_have_is_named(scheme: str) -> None:
    path = "/mymaster" if "sentinel" in scheme else ""
    url = f"{scheme}://u:s3cret@localhost{path}?ssl_ocsp_expected_cert=a"
    with pytest.raises(ConfigurationError, match="'ssl_ocsp_expected_cert'") as caught:
        asyncio.run(Limiter(url, LIMITS)["api"].aacquire())
    assert "s3cret" not in str(caught.value)
