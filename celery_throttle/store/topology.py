"""Which server keeps the limits: found, and found again when it has moved."""

from __future__ import annotations

from typing import Any

import hiredis

from celery_throttle.store.address import Address
from celery_throttle.store.connection import AnyWire
from celery_throttle.store.connection_plan import Ask, Connect, Steps
from celery_throttle.store.script import pack
from celery_throttle.store.server_errors import Redirect


class Servers:
    """Where the limits may be kept. Threads and event loops share one.

    Attributes:
        generation: grows when the server in charge may be another one than before. A wire of an
            earlier generation is not to be used again.
    """

    def __init__(self) -> None:
        self.generation = 0

    def find(self) -> Steps[AnyWire]:
        """Connect to the server that is in charge now."""
        raise NotImplementedError

    def lost(self, wire: AnyWire) -> bool:
        """A server does not answer or is not in charge; tells whether another one may be."""
        self._grow(wire)
        return True

    def moved(self, wire: AnyWire, to: Redirect) -> None:  # noqa: ARG002  # see Nodes
        """A node of a cluster says which other one is in charge."""
        self._grow(wire)

    def _grow(self, wire: AnyWire) -> None:
        """Begin a generation, unless somebody did so since the wire was opened."""
        if wire.generation == self.generation:
            self.generation += 1


class Nodes(Servers):
    """One server, or some nodes of a cluster: the one that served last, then those that were named.

    A server that was named alone may turn out to be a node of a cluster, too.
    """

    def __init__(self, named: tuple[Address, ...]) -> None:
        super().__init__()
        self._named = self._nodes = named

    def find(self) -> Steps[AnyWire]:
        """Connect to the node that served last, or to the next that can be reached."""
        generation = self.generation
        for node in self._nodes:
            try:
                wire: AnyWire = yield Connect(node)
            except OSError as error:  # noqa: PERF203  # one at a time
                failure = error
                self._pass_over(node)
                # A time-out is long enough for one call: the next one tries the next node.
                if isinstance(error, TimeoutError):
                    break
            else:
                wire.generation = generation
                return wire
        raise failure

    def lost(self, wire: AnyWire) -> bool:
        """Another node may know which one is in charge."""
        self._grow(wire)
        self._pass_over(wire.address)
        return len(self._nodes) > 1

    def moved(self, wire: AnyWire, to: Redirect) -> None:
        """Begin with that one from now on."""
        self._grow(wire)
        node = wire.address.at(*to)
        self._nodes = (node, *(one for one in self._named if one != node))

    def _pass_over(self, node: Address) -> None:
        first, *others = self._nodes
        if first == node:
            self._nodes = (*others, first)


class Sentinels(Servers):
    """Sentinels, and the master they watch.

    Args:
        sentinels: where they are.
        master: how one connects to the master, wherever it is.
        name: of the master.
    """

    def __init__(self, sentinels: tuple[Address, ...], master: Address, name: str) -> None:
        super().__init__()
        self._sentinels = sentinels
        self._master = master
        self._name = name

    def find(self) -> Steps[AnyWire]:
        """Connect to what a Sentinel says is the master, if that says so, too."""
        failures = []
        for sentinel in self._sentinels:
            try:
                wire = yield from self._find_by(sentinel)
            except OSError as error:  # noqa: PERF203  # one at a time
                failures.append(f"{sentinel}: {error}")
                self._sentinels = (*(one for one in self._sentinels if one != sentinel), sentinel)
                # A time-out is long enough for one call: the next one asks another Sentinel.
                if isinstance(error, TimeoutError):
                    break
            else:
                if wire.address != self._master:
                    self._master = wire.address
                    self.generation += 1
                wire.generation = self.generation
                return wire
        raise ConnectionError(f"no master {self._name!r} found; Sentinel {'; '.join(failures)}")

    def _find_by(self, sentinel: Address) -> Steps[AnyWire]:
        asked = yield Connect(sentinel)
        try:
            told = yield Ask(asked, (pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name),))
        finally:
            asked.close()
        if _valid(told) is None:
            raise ConnectionError("does not know it")
        host, port = told
        wire: AnyWire = yield Connect(self._master.at(host.decode(), int(port)))
        role = None
        try:
            role = _valid((yield Ask(wire, (pack("ROLE"),))))[0].decode()
        finally:
            if role != "master":
                wire.close()
        if role != "master":
            raise ConnectionError(f"names {wire.address}, which is a {role}")
        return wire


def _valid(reply: Any) -> Any:
    """A reply that is no error.

    Raises:
        hiredis.ReplyError: it is one.
    """
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
