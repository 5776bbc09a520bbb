"""TLS, with certificates on both sides."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from types import SimpleNamespace

import pytest
import redis
import trustme

from celery_throttle import Limiter, StoreUnavailableError
from celery_throttle.store.client import Store
from celery_throttle.store.connection import Address, Connection
from tests.ends import MakeEnd
from tests.servers.tls import SecureServer
from tests.store.listening import PING, listening
from tests.store.queue import Queue
from tests.workers import StartWorker

LIMITS = {"api": "1/h burst 100"}


def test_with_a_certificate(secure: SecureServer, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(secure.url, LIMITS))
    assert [limiter["api"].try_acquire().remaining for _ in range(3)] == [99, 98, 97]


def test_without_one(secure: SecureServer, end_of: MakeEnd) -> None:
    with pytest.raises(StoreUnavailableError):
        end_of(Limiter(secure.stranger_url, LIMITS))["api"].try_acquire()


def test_a_server_whose_certificate_nobody_vouches_for(
    secure: SecureServer, end_of: MakeEnd
) -> None:
    with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        end_of(Limiter(secure.distrusting_url, LIMITS))["api"].try_acquire()
    trusting = f"{secure.distrusting_url}&ssl_cert_reqs=CERT_NONE"  # as Celery writes it
    assert end_of(Limiter(trusting, LIMITS))["api"].try_acquire()


def test_an_idle_connection_is_used_again(secure: SecureServer, end_of: MakeEnd) -> None:
    """Records that TLS sends by itself are not an end of the stream."""
    limiter = end_of(Limiter(secure.url, LIMITS))
    limiter["api"].try_acquire()
    with redis.Redis.from_url(secure.plain_url) as client:
        made = connections_made(client)
        for _ in range(3):
            time.sleep(0.06)  # longer than a connection is taken to be open without a look
            limiter["api"].try_acquire()
        assert connections_made(client) == made


def connections_made(client: redis.Redis) -> int:
    return int(client.info("stats")["total_connections_received"])


def test_a_sleeping_worker_is_woken(secure: SecureServer) -> None:
    store = Store(secure.url)
    store.run(PING)
    with listening(store) as listener, redis.Redis.from_url(secure.plain_url) as client:
        listener.hears(client)


@pytest.mark.workers
def test_tasks_wait(secure: SecureServer, redis_url: str, start_worker: StartWorker) -> None:
    queue = Queue(redis_url, secure.url, redis_url)
    start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(8)
    queue.tasks_run()


class CutPeer:
    """A peer of a TLS connection that sends its records in parts."""

    def __init__(self, end: socket.socket, authority: trustme.CA) -> None:
        self._end = end
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("peer").configure_cert(context)
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._unsent, server_side=True)

    def accept(self) -> None:
        while not self._shake_hands():
            self.send_rest()
            self._received.write(self._end.recv(65536))
        self.send_rest()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def send_part(self, data: bytes, size: int) -> None:
        """Send the first bytes of the record for some data."""
        self._tls.write(data)
        self._end.sendall(self._unsent.read(size))

    def send_rest(self) -> None:
        self._end.sendall(self._unsent.read())


def test_a_worker_does_not_wait_for_the_rest_of_a_record() -> None:
    """Its loop has other things to do."""
    authority, (own, other) = trustme.CA(), socket.socketpair()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with own, other:
        peer = CutPeer(other, authority)
        accepting = threading.Thread(target=peer.accept)
        accepting.start()
        own.settimeout(2)
        with context.wrap_socket(own, server_hostname="peer") as tls:
            accepting.join()
            connection = Connection(Address("tls", {}), SimpleNamespace(_sock=tls), 0.0)
            assert connection.read_within(0.05) is False  # TLS has sent something of its own
            peer.send_part(b"+PONG\r\n", 10)
            assert connection.read_within(0.05) is False
            peer.send_rest()
            assert connection.read() == b"PONG"
