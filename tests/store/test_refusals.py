"""Error replies of a server that cannot serve now: a call takes nothing, and a later one passes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_throttle import Limiter, StoreError, StoreUnavailableError
from tests.ends import MakeEnd
from tests.protocol import Protocol
from tests.servers.server import Server, wait_until
from tests.store.conftest import StartServer, command_of

LIMITS = {"api": "1/h burst 100"}


@contextmanager
def out_of_memory(server: Server) -> Iterator[None]:
    server.configure("maxmemory", 1)
    yield
    server.configure("maxmemory", 0)


@contextmanager
def without_replicas(server: Server) -> Iterator[None]:
    server.configure("min-replicas-to-write", 1)
    yield
    server.configure("min-replicas-to-write", 0)


@contextmanager
def demoted(server: Server, stale: str = "yes") -> Iterator[None]:
    server.configure("replica-serve-stale-data", stale)
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def cut_off(server: Server) -> Iterator[None]:
    with demoted(server, stale="no"):
        yield


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """A foreign script that does not end."""
    server.configure("lua-time-limit", 10)

    def spin() -> None:
        with server.client() as client, suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=spin)
    thread.start()
    with server.client() as client:
        wait_until(lambda: "BUSY" in said_by(client), "a server that is busy")
        yield
        client.script_kill()
    thread.join()


@contextmanager
def unable_to_save(server: Server) -> Iterator[None]:
    server.configure("save", "3600 1")
    shutil.rmtree(server.directory)
    with server.client() as client, suppress(redis.ResponseError):
        client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "a failure"
        )
    yield
    server.configure("save", "")


def said_by(client: redis.Redis) -> str:
    """Return the error that the server replies."""
    try:
        client.get("any")
    except redis.BusyLoadingError:
        return "LOADING"
    except redis.ConnectionError:
        return "nothing"
    except redis.RedisError as error:
        return str(error)
    return ""


STATES: dict[str, Callable[[Server], AbstractContextManager[None]]] = {
    "OOM": out_of_memory,
    "NOREPLICAS": without_replicas,
    "READONLY": demoted,
    "MASTERDOWN": cut_off,
    "BUSY": busy,
    "MISCONF": unable_to_save,
}

#: Microseconds for each key, and a look at what clients want after each: not in Redis 6.
SLOW_TO_LOAD = ("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")


@pytest.mark.thorough
@pytest.mark.parametrize("code", STATES)
def test_a_server_that_cannot_serve_now(
    command: Path, start_server: StartServer, end_of: MakeEnd, code: str
) -> None:
    server = start_server(command)
    limiter = end_of(Limiter(server.url, LIMITS))
    assert limiter["api"].try_acquire().remaining == 99
    with STATES[code](server):
        for _ in range(2):
            with pytest.raises(StoreError, match=code) as raised:
                limiter["api"].try_acquire()
            # Where memory is full, lines drain all the same: no worker takes the server for lost.
            assert isinstance(raised.value, StoreUnavailableError) == (code != "OOM")
    assert limiter["api"].try_acquire().remaining == 98


def test_lines_drain_where_memory_is_full(command: Path, start_server: StartServer) -> None:
    server = start_server(command)
    lines = Protocol(server.url, {"turn": "1/s"})
    assert lines.park("first", ["turn"]).outcome == "admitted"
    for number in range(3):
        lines.park(f"{number}", ["turn"])
    lines.claim("other", room=0)
    with out_of_memory(server):
        with pytest.raises(StoreError, match="OOM"):
            lines.park("more", ["turn"])
        taken = []
        for _ in range(3):
            lines.now += 1_000_000
            claims = lines.claim()
            taken += [claim.id for claim in claims]
            lines.claim(room=0, settled=[claim.token for claim in claims])
    assert taken == ["0", "1", "2"]
    lines.close()


@pytest.mark.thorough
def test_a_refusal_that_cannot_be_counted_is_a_refusal(
    command: Path, start_server: StartServer, end_of: MakeEnd
) -> None:
    server = start_server(command)
    limits = {"api": "1/h", "window": "1/d using fixed-window"}
    limiter = end_of(Limiter(server.url, limits))
    for name in limits:
        assert limiter[name].try_acquire()
    with out_of_memory(server):
        for name in limits:
            assert limiter[name].try_acquire().limited_by == name
    with server.client() as client:
        assert [client.hlen(f"{{throttle}}:totals:{name}") for name in limits] == [1, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["resume", "reset"])
@pytest.mark.parametrize("paused", ["turn", ("turn", "key")])
def test_a_pause_is_lifted_where_what_waits_behind_it_fills_the_memory(
    command: Path, start_server: StartServer, change: str, paused: Any
) -> None:
    server = start_server(command)
    lines = Protocol(server.url, {"turn": "1/s"})
    lines.limiter[paused].pause(None)
    assert lines.park("first", [paused]).outcome == "parked"
    lines.claim("other", room=0)
    with out_of_memory(server):
        getattr(lines.limiter[paused], change)()
        assert [claim.id for claim in lines.claim()] == ["first"]
    lines.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_server_that_has_come_back_and_loads_what_it_had(
    start_server: StartServer, end_of: MakeEnd, kind: str
) -> None:
    server = start_server(command_of(kind), "--rdbcompression", "no")
    limiter = end_of(Limiter(server.url, LIMITS))
    assert limiter["api"].try_acquire().remaining == 99
    with server.client() as client:
        client.mset({f"{number}": "x" * 1024 for number in range(2000)})
        client.save()
        server.stop()
        server.launch(*SLOW_TO_LOAD)
        wait_until(lambda: said_by(client) == "LOADING", "a server that loads")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=r"(?i)loading"):
                limiter["api"].try_acquire()
        server.configure("key-load-delay", 0)
        wait_until(lambda: said_by(client) == "", "a server that has loaded")
    assert limiter["api"].try_acquire().remaining == 98
