"""The steps of finding and asking servers: I/O that is written once for blocking code and asyncio.

A plan, such as finding the server in charge, is a generator of :mod:`celery_throttle.steps`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery_throttle.steps import Step
from celery_throttle.store.address import Address
from celery_throttle.store.connection import AsyncConnection, Connection


def connect_step(address: Address) -> Step:
    """Return the step whose result is a new connection."""
    return Step(partial(Connection.open, address), partial(AsyncConnection.open, address))


def send_step(connection: Any, *commands: bytes) -> Step:
    """Return the step that sends packed commands; its result is the reply to the last one.

    The connection is a :class:`Connection`, or for asyncio an :class:`AsyncConnection`.
    """

    def run() -> Any:
        connection.send(b"".join(commands))
        return [connection.read() for _ in commands][-1]

    async def arun() -> Any:
        connection.send(b"".join(commands))
        return [await connection.read() for _ in commands][-1]

    return Step(run, arun)
