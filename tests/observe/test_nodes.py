"""The figures of nodes."""

from __future__ import annotations

import signal
import threading

from celery_throttle.observe.nodes import Nodes
from celery_throttle.operations.plan import read_call
from celery_throttle.store.client import Store
from tests.servers.server import Server


def test_a_late_reply_is_not_read_as_that_of_the_next_command(own_server: Server) -> None:
    store = Store(own_server.url, timeout=0.5)
    store.run(read_call(""))
    nodes = Nodes({"home": (store, 1)})
    own_server.signal(signal.SIGSTOP)
    timer = threading.Timer(0.75, own_server.signal, [signal.SIGCONT])
    timer.start()
    (found,) = nodes.read().values()
    assert (found.memory, found.slots) == (None, {})
    timer.join()
    nodes.close()
    store.close()
