"""The server in charge of the limits: finds it, and finds it again after a failover."""

from __future__ import annotations

import time
from typing import Any

import hiredis

from celery_throttle.errors import ConfigurationError
from celery_throttle.store.async_connection import AnyConnection, connect_step, send_step
from celery_throttle.store.connection import Address
from celery_throttle.store.script import pack_command
from celery_throttle.store.steps import Steps


class Servers:
    """The servers that may be in charge. Shared by threads and event loops."""

    def __init__(self) -> None:
        #: Increases when another server may be in charge; after :attr:`node` has changed.
        self.generation = 0
        #: Connections that began to be opened before this monotonic time must not be used again.
        self.since = 0.0

    @property
    def node(self) -> str:
        """The address of the server that :meth:`find` tries first; empty if there is none."""
        return ""

    def find(self) -> Steps[AnyConnection]:
        """Connect to the server in charge."""
        raise NotImplementedError

    def report_lost(self, connection: AnyConnection) -> bool:
        """Record that a server is lost; return whether another one may be in charge."""
        self.start_generation(connection)
        return True

    def report_moved(self, connection: AnyConnection, to: Address) -> bool:  # noqa: ARG002  # see Nodes
        """Record that a node of a cluster has named the node in charge.

        Returns whether that one may be reachable.
        """
        return self.report_lost(connection)

    def start_generation(self, connection: AnyConnection) -> None:
        """Start a generation, unless that was done since the connection was opened."""
        if connection.began >= self.since:
            self.since = time.monotonic()
            self.generation += 1


class NoServers(Servers):
    """No server at all. ``reason``: why there is none, and what to do for one."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    def find(self) -> Steps[AnyConnection]:
        """Raise ConfigurationError."""
        yield from ()
        raise ConfigurationError(f"this needs a server, and there is none: {self._reason}")


class Nodes(Servers):
    """One server, or nodes of a cluster: the node that served last, then the configured ones.

    A single server may turn out to be a node of a cluster, too.
    """

    def __init__(self, configured: tuple[Address, ...]) -> None:
        super().__init__()
        self._configured = self._nodes = configured
        #: A node that could not be reached since a node was named last.
        self._unreachable: Address | None = None

    @property
    def node(self) -> str:
        """The node that served last, or else one that may know it."""
        return str(self._nodes[0])

    def find(self) -> Steps[AnyConnection]:
        """Connect to the node that served last, or else to the next one that is reachable."""
        for node in self._nodes:
            try:
                connection: AnyConnection = yield connect_step(node)
            except OSError as error:  # noqa: PERF203  # one at a time
                failure = error
                self._unreachable = node
                self._move_to_end(node)
                # One timeout is enough for one call: the next call tries the next node.
                if isinstance(error, TimeoutError):
                    break
            else:
                return connection
        raise failure

    def report_lost(self, connection: AnyConnection) -> bool:
        """See :class:`Servers`; another node may know the one in charge."""
        self._move_to_end(connection.address)
        self.start_generation(connection)
        return len(self._nodes) > 1

    def report_moved(self, connection: AnyConnection, to: Address) -> bool:
        """See :class:`Servers`; the next calls try that node first.

        The reply of a node that was called before this one may name a node that is in charge no
        longer: it is ignored. Until a failover, the nodes name the one that is lost.
        """
        unreachable, self._unreachable = self._unreachable, None
        if connection.address == self._nodes[0]:
            self._nodes = (to, *(one for one in self._configured if one != to))
            self.generation += 1
        return to != unreachable

    def _move_to_end(self, node: Address) -> None:
        first, *others = self._nodes
        if first == node:
            self._nodes = (*others, first)


class Sentinels(Servers):
    """Sentinels, and the master that they monitor; at first only the options of it are known."""

    def __init__(self, sentinels: tuple[Address, ...], master: Address, name: str) -> None:
        super().__init__()
        self._sentinels = sentinels
        self._master = master
        self._name = name

    @property
    def node(self) -> str:
        """The master that served last."""
        return str(self._master)

    def find(self) -> Steps[AnyConnection]:
        """Connect to the master that a Sentinel names, if that server confirms its role."""
        failures = []
        for sentinel in self._sentinels:
            try:
                connection = yield from self._find_master_by(sentinel)
            except OSError as error:  # noqa: PERF203  # one at a time
                failures.append(f"{sentinel}: {error}")
                self._sentinels = (*(one for one in self._sentinels if one != sentinel), sentinel)
                # One timeout is enough for one call: the next call tries another Sentinel.
                if isinstance(error, TimeoutError):
                    break
            else:
                if connection.address != self._master:
                    self._master = connection.address
                    self.since = connection.began = time.monotonic()
                    self.generation += 1
                return connection
        raise ConnectionError(f"no master {self._name!r} found; Sentinel {'; '.join(failures)}")

    def _find_master_by(self, sentinel: Address) -> Steps[AnyConnection]:
        query = pack_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        connection: AnyConnection = yield connect_step(sentinel)
        try:
            reply = _check_reply((yield send_step(connection, query)))
        finally:
            connection.close()
        if reply is None:
            raise ConnectionError("does not know it")
        host, port = reply
        connection = yield connect_step(self._master.with_host(host.decode(), int(port)))
        role = None
        try:
            role = _check_reply((yield send_step(connection, pack_command("ROLE"))))[0].decode()
        finally:
            if role != "master":
                connection.close()
        if role != "master":
            raise ConnectionError(f"names {connection.address}, which is a {role}")
        return connection


def _check_reply(reply: Any) -> Any:
    """Return a reply; raise it if it is an error (``hiredis.ReplyError``)."""
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
