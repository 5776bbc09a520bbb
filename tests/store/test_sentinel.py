"""A master with Sentinels: found, and found again after a failover."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_throttle import Limiter, StoreError, StoreUnavailableError
from celery_throttle.store.client import Store
from tests.ends import MakeEnd
from tests.servers.sentinel import NAME, Sentinel, Watched
from tests.servers.server import Server, replicate, valkey_command, wait_until
from tests.store.conftest import StartServer
from tests.store.listening import PING, listening
from tests.store.queue import Queue
from tests.workers import StartWorker

pytestmark = pytest.mark.thorough

LIMITS = {"api": "1/h burst 100"}


@pytest.fixture
def healed(watched: Watched) -> Iterator[Watched]:
    """The test may damage it."""
    yield watched
    watched.heal()


def test_a_failover_costs_no_error_and_forgets_nothing(healed: Watched, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(healed.url, LIMITS))
    assert limiter["api"].try_acquire().remaining == 99
    healed.fail_over()
    assert [limiter["api"].try_acquire().remaining for _ in range(3)] == [98, 97, 96]


def test_a_master_that_hangs_is_left_for_good(healed: Watched, end_of: MakeEnd) -> None:
    limiter = Limiter(healed.url, LIMITS)
    limiter.store = Store(healed.url, timeout=2)
    end = end_of(limiter)
    end["api"].try_acquire()
    replicate(healed.master, healed.replica)
    hung = healed.master
    hung.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match="no reply in time"):
            end["api"].try_acquire()
        healed.wait_for_failover()
        assert end["api"].try_acquire().remaining == 98
    finally:
        hung.signal(signal.SIGCONT)
    assert end["api"].try_acquire().remaining == 97


class Two:
    """A single Sentinel that names either of two servers as the master, as set."""

    def __init__(self, first: Server, second: Server, directory: Path) -> None:
        self.first, self.second = first, second
        settings = directory / "sentinel.conf"
        self.sentinel = Sentinel(valkey_command(), settings, first.port)
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{NAME}"

    def name(self, server: Server) -> None:
        with redis.Redis(port=self.sentinel.port) as client:
            client.sentinel_remove(NAME)
            client.sentinel_monitor(NAME, "127.0.0.1", server.port, 2)


@pytest.fixture
def two(start_server: StartServer, tmp_path: Path) -> Iterator[Two]:
    two = Two(start_server(valkey_command()), start_server(valkey_command()), tmp_path)
    yield two
    two.sentinel.stop()


def demote(server: Server, master: Server) -> None:
    with redis.Redis(port=server.port) as client:
        client.replicaof("127.0.0.1", str(master.port))


def test_a_demoted_master_to_which_one_is_connected_still(two: Two, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(two.url, LIMITS))
    limiter["api"].try_acquire()
    two.name(two.second)
    demote(two.first, two.second)
    assert limiter["api"].try_acquire().remaining == 99  # it is the first one there
    with redis.Redis(port=two.second.port) as client:
        assert client.exists("{throttle}:state:api")


def test_calls_of_a_loop_follow_the_master_together(two: Two) -> None:
    async def main() -> None:
        limiter = Limiter(two.url, LIMITS)
        assert await limiter["api"].atry_acquire()
        demote(two.first, two.second)
        two.name(two.second)
        assert all(await asyncio.gather(*(limiter["api"].atry_acquire() for _ in range(50))))
        assert (await limiter["api"].apeek()).remaining == 50
        await limiter.store.aclose()

    asyncio.run(main())


def test_calls_leave_a_master_once_another_call_has_found_its_successor(
    two: Two, end_of: MakeEnd
) -> None:
    """Both take calls, as if the network was split; calls do not pause, so no socket is tested."""
    limiter = Limiter(two.url, LIMITS)
    end = end_of(limiter)
    end["api"].try_acquire()
    two.name(two.second)
    end["api"].try_acquire()
    limiter.store.connection().close()  # asks the Sentinel
    assert end["api"].try_acquire().remaining == 99


def test_a_replica_that_is_named_is_not_talked_to(two: Two, end_of: MakeEnd) -> None:
    demote(two.first, two.second)
    limiter = end_of(Limiter(two.url, LIMITS))
    with pytest.raises(StoreUnavailableError, match=f"names .*:{two.first.port}, .* is a slave"):
        limiter["api"].try_acquire()
    two.name(two.second)
    assert limiter["api"].try_acquire()


def test_a_master_that_no_sentinel_knows(two: Two, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(two.url.replace(NAME, "other"), LIMITS))
    with pytest.raises(StoreUnavailableError, match=r"'other' .*: does not know it"):
        limiter["api"].try_acquire()


def test_the_next_sentinel_is_asked(watched: Watched, end_of: MakeEnd) -> None:
    nobody = "redis+sentinel://127.0.0.1:1,"
    limiter = end_of(Limiter(watched.url.replace("redis+sentinel://", nobody), LIMITS))
    assert limiter["api"].try_acquire()
    assert limiter["api"].try_acquire()


def test_without_sentinels_it_says_so(end_of: MakeEnd) -> None:
    url = f"redis+sentinel://user:s3cret@127.0.0.1:1,127.0.0.1:2/{NAME}?sentinel_password=s3cret"
    limiter = end_of(Limiter(url, LIMITS))
    with pytest.raises(
        StoreUnavailableError, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "
    ) as caught:
        limiter["api"].try_acquire()
    assert "s3cret" not in str(caught.value)


def test_sentinels_have_passwords_of_their_own(two: Two, end_of: MakeEnd) -> None:
    for port, password in ((two.sentinel.port, "theirs"), (two.first.port, "its")):
        with redis.Redis(port=port) as client:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", f">{password}")
    url = two.url.replace("//", "//:its@")
    assert end_of(Limiter(f"{url}?sentinel_password=theirs", LIMITS))["api"].try_acquire()
    for wrong in (url, two.url + "?sentinel_password=theirs"):
        with pytest.raises(StoreError, match="Authentication required"):
            end_of(Limiter(wrong, LIMITS))["api"].try_acquire()


def test_a_subscription_follows(healed: Watched) -> None:
    store = Store(healed.url)
    with listening(store) as listener:
        with healed.client() as client:
            listener.hears(client)
        healed.fail_over()
        store.run(PING)
        with healed.client() as client:
            listener.hears(client)


@pytest.mark.workers
def test_tasks_wait_through_a_failover_of_broker_and_limits(
    healed: Watched, redis_url: str, start_worker: StartWorker
) -> None:
    """The broker is on the same servers, and throttle_url is not set."""
    options = {"master_name": NAME}
    queue = Queue(healed.broker_url, healed.url, redis_url, told=False, transport_options=options)
    worker = start_worker("tests.apps.stores", healed.broker_url, env=queue.env)
    queue.tasks_wait(8)
    healed.fail_over()
    queue.let_go()
    wait_until(lambda: queue.all_ran() or worker.has_ended(), "all tasks run")
    if worker.has_ended():
        # kombu's Sentinel transport fails at times while it closes a connection that was lost, and
        # the worker ends with it (kombu 5.7, an AttributeError): whoever runs workers starts them.
        start_worker("tests.apps.stores", healed.broker_url, env=queue.env)
    queue.tasks_run()
